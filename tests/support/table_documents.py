"""The committable of the modelled table, of the form that those of all tables have."""

from dataclasses import asdict, dataclass
from typing import Any

from onceward.protocol.values import JsonObject
from onceward.sinks.lake.documents import LakeCommittable

__all__ = ["TableFile", "TableFiles"]


@dataclass(frozen=True, kw_only=True)
class TableFile:
    name: str
    path: str
    size: int
    records: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


class TableFiles(LakeCommittable[TableFile]):
    KIND = "simulated-files"
    VERSION = 1

    @classmethod
    def read_file(cls, raw: JsonObject) -> TableFile:
        return TableFile(
            name=str(raw["name"]), path=str(raw["path"]), size=int(raw["size"]), records=int(raw["records"])
        )
