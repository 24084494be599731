"""The committable of a table as a document: one for each checkpoint. Loads without any client."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

from onceward.protocol.values import Author, Committable, JsonObject
from onceward.sinks.documents import SinkDocument
from onceward.sinks.lake.identifiers import StagedName

__all__ = ["Before", "LakeCommittable", "WrittenFile"]


class WrittenFile(Protocol):
    """A data file that a task has written."""

    @property
    def name(self) -> str:
        """Of the form of :class:`StagedName`."""

    @property
    def path(self) -> str:
        """Relative to the table."""

    @property
    def size(self) -> int:
        """Bytes."""

    @property
    def records(self) -> int: ...

    def to_json(self) -> dict[str, Any]: ...


File = TypeVar("File", bound=WrittenFile)


class Before(NamedTuple):
    """A commit that was proved, of the same sink."""

    checkpoint: int
    transaction: int
    """Its number."""


@dataclass(frozen=True, kw_only=True)
class LakeCommittable(SinkDocument, Generic[File]):
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
    """Its number, which no other committable has (``control/transactions.py``)."""
    columns: Mapping[str, Any]
    """The type of each column in the files, as the table's schema has it."""
    files: Sequence[File]
    bytes: int
    inputs: Sequence[JsonObject]
    """The splits that the files were made of; none in a document of a release that did not store them."""
    input_text: str
    """What the source says of the input."""
    after: Before | None = None
    """A commit that the table has when this one is made. A table without it has gone back: to an older copy, or to an
    earlier version of its own. None if none is known."""
    together: str = ""
    """Tables with the same text get the checkpoint by one commit; empty for one that is committed alone."""

    @classmethod
    @abstractmethod
    def read_file(cls, raw: JsonObject) -> File:
        """Raises KeyError, TypeError and ValueError."""

    @property
    def before(self) -> Before:
        """What a later one comes after."""
        return Before(self.checkpoint, self.transaction)

    @property
    def records(self) -> int:
        return sum(one.records for one in self.files)

    @property
    def names(self) -> Sequence[str]:
        return [one.name for one in self.files]

    def to_committable(self) -> Committable:
        body = {
            "table": {"id": self.table_id, "uri": self.uri},
            "job": self.job,
            "sink": self.sink,
            "generation": self.generation,
            "checkpoint": self.checkpoint,
            "transaction": self.transaction,
            "columns": dict(self.columns),
            "destination": self.uri,
            "records": self.records,
            "files": [one.to_json() for one in self.files],
            "bytes": self.bytes,
            "inputs": list(self.inputs),
            "input_text": self.input_text,
        }
        if self.after is not None:
            body["after"] = self.after._asdict()
        if self.together:
            body["together"] = self.together
        return Committable(slot=self.slot, document=self.document(body))

    @classmethod
    def read(cls, slot: int, body: Mapping[str, Any]) -> Self:
        """See :meth:`SinkDocument.read`."""
        after: Mapping[str, Any] | None = body.get("after")
        return cls(
            slot=slot,
            table_id=str(body["table"]["id"]),
            uri=str(body["table"]["uri"]),
            job=str(body["job"]),
            sink=str(body["sink"]),
            generation=int(body["generation"]),
            checkpoint=int(body["checkpoint"]),
            transaction=int(body["transaction"]),
            columns=dict(body["columns"]),
            files=tuple(map(cls.read_file, body["files"])),
            bytes=int(body["bytes"]),
            inputs=tuple(map(dict, body.get("inputs", ()))),
            input_text=str(body["input_text"]),
            after=None if after is None else Before(int(after["checkpoint"]), int(after["transaction"])),
            together=str(body.get("together", "")),
        )

    def require_own(self, author: Author) -> None:
        """See :meth:`SinkDocument.require_own`."""
        if not author.made(self.job, self.sink, self.generation):
            named = f"{self.sink} of job {self.job}, generation {self.generation}"
            raise ValueError(f"it names {named}, which is none of {author}")
        for one in self.files:
            name = StagedName.parse(one.name)
            written_by = None if name is None else (name.job, name.sink, name.generation)
            if written_by != (self.job, self.sink, self.generation):
                raise ValueError(f"it names {one.path!r}, which is no file of {author}")
