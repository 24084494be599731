"""The committable of this sink as a document: ``iceberg-files``, version 1.

It holds the files as a manifest describes them, and not their paths alone: from paths, the library would have to read
each file again, and could not add the files of a table that is divided into buckets.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onceward.protocol.values import JsonObject
from onceward.sinks.iceberg.identifiers import FOLDER
from onceward.sinks.lake.documents import LakeCommittable
from onceward.sinks.lake.identifiers import data_path

__all__ = ["IcebergCommittable", "IcebergFile", "check_committable"]


@dataclass(frozen=True, kw_only=True)
class IcebergFile:
    """A data file that a task has written."""

    name: str
    size: int
    records: int
    spec: int
    """The id of the partition spec by which it was divided."""
    partition: Sequence[str | None]
    """A value for each field of the spec: base64 of the bytes by which Iceberg writes it."""
    metrics: str
    """JSON: statistics by the names that a manifest has for them, each by the ids of columns. Bounds are base64."""

    @property
    def path(self) -> str:
        return data_path(FOLDER, self.name)

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "size": self.size,
            "records": self.records,
            "spec": self.spec,
            "partition": list(self.partition),
            "metrics": self.metrics,
        }

    @classmethod
    def from_json(cls, raw: JsonObject) -> "IcebergFile":
        """Raises KeyError, TypeError and ValueError."""
        return cls(
            name=str(raw["name"]),
            size=int(raw["size"]),
            records=int(raw["records"]),
            spec=int(raw["spec"]),
            partition=tuple(None if value is None else str(value) for value in raw["partition"]),
            metrics=str(raw["metrics"]),
        )


class IcebergCommittable(LakeCommittable[IcebergFile]):
    """All that one checkpoint adds to a table."""

    KIND = "iceberg-files"
    VERSION = 1

    @classmethod
    def read_file(cls, raw: JsonObject) -> IcebergFile:
        """See :meth:`LakeCommittable.read_file`."""
        return IcebergFile.from_json(raw)


check_committable = IcebergCommittable.check
