"""The committable of this sink as a document: ``delta-files``, version 1. There is one for a checkpoint.

A coordinator checks it without any client installed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onceward.common.errors import HaltedError
from onceward.protocol.values import Author, Committable, Document, JsonObject
from onceward.sinks.delta.identifiers import StagedName

__all__ = ["KIND", "VERSION", "DataFile", "DeltaCommittable", "check_committable"]

KIND = "delta-files"
VERSION = 1


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


@dataclass(frozen=True, kw_only=True)
class DeltaCommittable:
    """All that one checkpoint adds to a table."""

    slot: int
    table_id: str
    uri: str
    """Where the driver has found the table; another process may find it elsewhere."""
    job: str
    sink: str
    generation: int
    checkpoint: int
    transaction: int
    """The version of the app transaction, which no other committable has (``control/transactions.py``)."""
    columns: Mapping[str, Any]
    """The type of each column in the files, as the table's schema has it."""
    files: Sequence[DataFile]
    bytes: int
    inputs: Sequence[JsonObject]
    """The splits that the files were made of; none in a document of a release that did not store them."""
    input_text: str
    """What the source says of the input."""

    @property
    def records(self) -> int:
        return sum(one.records for one in self.files)

    def to_committable(self) -> Committable:
        body = {
            "table": {"id": self.table_id, "uri": self.uri},
            "job": self.job,
            "sink": self.sink,
            "generation": self.generation,
            "checkpoint": self.checkpoint,
            "transaction": self.transaction,
            "columns": dict(self.columns),
            "files": [one.to_json() for one in self.files],
            "bytes": self.bytes,
            "inputs": list(self.inputs),
            "input_text": self.input_text,
        }
        return Committable(slot=self.slot, document=Document(kind=KIND, version=VERSION, body=body))

    @classmethod
    def of(cls, committable: Committable) -> "DeltaCommittable":
        """Parse a document. Raises HaltedError for a kind, version or content that this release does not know."""
        document = committable.document
        if document.kind != KIND or document.version != VERSION:
            raise _unreadable(committable, f"this release reads {KIND} version {VERSION}")
        try:
            return _read(committable.slot, document.body)
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise _unreadable(committable, f"its content is damaged ({error!r})") from error

    @classmethod
    def own(cls, committable: Committable, author: Author) -> "DeltaCommittable":
        """Parse a document whose files are to be committed or deleted. Raises HaltedError like :meth:`of`, and if it
        names anything that is not ``author``'s."""
        parsed = cls.of(committable)
        try:
            parsed.require_own(author)
        except ValueError as error:
            raise HaltedError(
                f"The committable of slot {committable.slot} is not to be trusted: {error}. Nothing was committed or "
                "deleted for it. Find out which process acknowledged it: it acts for this job. If the store was "
                "damaged, put back a copy of it."
            ) from None
        return parsed

    def require_own(self, author: Author) -> None:
        """Raises ValueError if this names anything that ``author`` has not written."""
        if not author.made(self.job, self.sink, self.generation):
            named = f"{self.sink} of job {self.job}, generation {self.generation}"
            raise ValueError(f"it names {named}, which is none of {author}")
        for one in self.files:
            name = StagedName.parse(one.path)
            written_by = None if name is None else (name.job, name.sink, name.generation)
            if written_by != (self.job, self.sink, self.generation):
                raise ValueError(f"it names {one.path!r}, which is no file of {author}")


def check_committable(document: Document, base: Document | None, author: Author) -> None:
    """Validate a committable before the coordinator accepts it. Raises ValueError for an unknown version, for a
    document that lacks what is needed to commit it, and for one that names the files of another."""
    if document.version != VERSION:
        raise ValueError(f"it has version {document.version}, and this program knows only version {VERSION}")
    try:
        parsed = _read(0, document.body)
    except (AttributeError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"its content cannot be read: {error!r}") from error
    parsed.require_own(author)


def _read(slot: int, body: JsonObject) -> DeltaCommittable:
    return DeltaCommittable(
        slot=slot,
        table_id=str(body["table"]["id"]),
        uri=str(body["table"]["uri"]),
        job=str(body["job"]),
        sink=str(body["sink"]),
        generation=int(body["generation"]),
        checkpoint=int(body["checkpoint"]),
        transaction=int(body["transaction"]),
        columns=dict(body["columns"]),
        files=tuple(map(DataFile.from_json, body["files"])),
        bytes=int(body["bytes"]),
        inputs=tuple(map(dict, body.get("inputs", ()))),
        input_text=str(body["input_text"]),
    )


def _unreadable(committable: Committable, why: str) -> HaltedError:
    document = committable.document
    return HaltedError(
        f"The committable of slot {committable.slot} is a {document.kind!r} document of version {document.version}: "
        f"{why}. Its files were neither committed nor deleted. Use the release that wrote it, or a newer one."
    )
