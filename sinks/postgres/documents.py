"""The committable of this sink as a document: ``postgres-staged``, version 1. Loads without a client.

There is one for each checkpoint, which becomes visible at once. It holds what any process needs to merge the rows in
the right database, and to prove the outcome.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onceward.protocol.values import Author, Committable, JsonObject
from onceward.sinks.documents import SinkDocument

__all__ = ["PostgresCommittable", "Receipt", "StagedTable", "check_committable"]


@dataclass(frozen=True, kw_only=True)
class StagedTable:
    """The rows of one slot."""

    name: str
    slot: int
    records: int


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What the merge of a checkpoint leaves."""

    checkpoint: int
    token: str


@dataclass(frozen=True, kw_only=True)
class PostgresCommittable(SinkDocument):
    """What a checkpoint has staged."""

    KIND = "postgres-staged"
    VERSION = 1

    system: str
    """The database's id (``server.py``)."""
    database: str
    """Its name, for people."""
    timeline: int
    """The server's when the checkpoint was pre-committed: a fail-over and a restored backup begin a new one."""
    job: str
    sink: str
    generation: int
    checkpoint: int
    store: str
    """The id of the store that decides; empty if no claim was there."""
    token: str
    """Unique to this document: shows what a receipt is for."""
    after: Receipt | None
    """The receipt of what is merged before it. A database without it has gone back: a backup was restored, or another
    server took over that had not received everything. None if it is not known."""
    target: tuple[str, str]
    """Schema and name of the table."""
    columns: tuple[str, ...]
    """Those that are written."""
    key: tuple[str, ...] = ()
    """The rows with an equal key are replaced; empty to append."""
    delete: str = ""
    """The staged column that says that the row with this key is deleted; empty if none is."""
    tables: tuple[StagedTable, ...]
    """In the order of the input."""
    bytes: int
    inputs: Sequence[JsonObject]
    """The splits that the rows were made of; none in a document of a release that did not store them."""
    input_text: str
    """What the source says of the input, for people."""

    @property
    def receipt(self) -> Receipt:
        return Receipt(checkpoint=self.checkpoint, token=self.token)

    @property
    def records(self) -> int:
        return sum(table.records for table in self.tables)

    @property
    def names(self) -> list[str]:
        return [table.name for table in self.tables]

    def to_committable(self) -> Committable:
        body: dict[str, Any] = {
            "system": {"id": self.system, "database": self.database, "timeline": self.timeline},
            "job": self.job,
            "sink": self.sink,
            "generation": self.generation,
            "checkpoint": self.checkpoint,
            "store": self.store,
            "token": self.token,
            "after": None if self.after is None else {"checkpoint": self.after.checkpoint, "token": self.after.token},
            "target": list(self.target),
            "columns": list(self.columns),
            "key": list(self.key),
            "delete": self.delete,
            "destination": f"{'.'.join(self.target)} of database {self.database}",
            "records": self.records,
            "tables": [{"name": one.name, "slot": one.slot, "records": one.records} for one in self.tables],
            "bytes": self.bytes,
            "inputs": list(self.inputs),
            "input_text": self.input_text,
        }
        return Committable(slot=0, document=self.document(body))

    @classmethod
    def read(cls, slot: int, body: Mapping[str, Any]) -> "PostgresCommittable":
        """See :meth:`SinkDocument.read`."""
        schema, name = body["target"]
        tables: Sequence[Mapping[str, Any]] = body["tables"]
        after: Mapping[str, Any] | None = body.get("after")
        return cls(
            system=str(body["system"]["id"]),
            database=str(body["system"]["database"]),
            timeline=int(body["system"]["timeline"]),
            job=str(body["job"]),
            sink=str(body["sink"]),
            generation=int(body["generation"]),
            checkpoint=int(body["checkpoint"]),
            store=str(body["store"]),
            token=str(body["token"]),
            after=None if after is None else Receipt(checkpoint=int(after["checkpoint"]), token=str(after["token"])),
            target=(str(schema), str(name)),
            columns=tuple(map(str, body["columns"])),
            key=tuple(map(str, body["key"])),
            delete=str(body["delete"]),
            tables=tuple(
                StagedTable(name=str(one["name"]), slot=int(one["slot"]), records=int(one["records"])) for one in tables
            ),
            bytes=int(body["bytes"]),
            inputs=tuple(map(dict, body.get("inputs", ()))),
            input_text=str(body["input_text"]),
        )

    def require_own(self, author: Author) -> None:
        """See :meth:`SinkDocument.require_own`. Rows are found by these names, so no list of tables reaches those of
        another."""
        if not author.made(self.job, self.sink, self.generation):
            raise ValueError(
                f"it names rows of sink {self.sink} of job {self.job}, generation {self.generation}, which is not "
                f"{author}"
            )


check_committable = PostgresCommittable.check
