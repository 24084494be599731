"""The committable of this sink as a document: ``delta-files``, version 1."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from onceward.protocol.values import JsonObject
from onceward.sinks.lake.documents import LakeCommittable

__all__ = ["DataFile", "DeltaCommittable", "check_committable"]


@dataclass(frozen=True, kw_only=True)
class DataFile:
    """A data file that a task has written, as the table's log will name it."""

    path: str
    """Relative to the table: a name of the form of :class:`StagedName`, in no folder."""
    size: int
    """Bytes."""
    records: int
    partition_values: Mapping[str, str | None]
    stats: str
    """JSON, as the table's log has it."""
    modified_ms: int

    @property
    def name(self) -> str:
        return self.path

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.path,
            "size": self.size,
            "records": self.records,
            "partition_values": dict(self.partition_values),
            "stats": self.stats,
            "modified_ms": self.modified_ms,
        }

    @classmethod
    def from_json(cls, raw: JsonObject) -> "DataFile":
        """Raises KeyError, TypeError and ValueError."""
        return cls(
            path=str(raw["path"]),
            size=int(raw["size"]),
            records=int(raw["records"]),
            partition_values={
                str(name): None if value is None else str(value) for name, value in raw["partition_values"].items()
            },
            stats=str(raw["stats"]),
            modified_ms=int(raw["modified_ms"]),
        )


class DeltaCommittable(LakeCommittable[DataFile]):
    """All that one checkpoint adds to a table."""

    KIND = "delta-files"
    VERSION = 1

    @classmethod
    def read_file(cls, raw: JsonObject) -> DataFile:
        """See :meth:`LakeCommittable.read_file`."""
        return DataFile.from_json(raw)


check_committable = DeltaCommittable.check
