"""The committable of this sink as a document: ``postgres-staged``, version 1. Loads without a client.

There is one for each checkpoint, which becomes visible at once. It holds what any process needs to merge the rows in
the right database, and to prove the outcome.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onceward.common.errors import HaltedError
from onceward.protocol.values import Author, Committable, Document, JsonObject

__all__ = ["KIND", "VERSION", "PostgresCommittable", "StagedTable", "check_committable"]

KIND = "postgres-staged"
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class StagedTable:
    """The rows of one slot."""

    name: str
    slot: int
    records: int


@dataclass(frozen=True, kw_only=True)
class PostgresCommittable:
    """What a checkpoint has staged."""

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
            "target": list(self.target),
            "columns": list(self.columns),
            "key": list(self.key),
            "delete": self.delete,
            "tables": [{"name": one.name, "slot": one.slot, "records": one.records} for one in self.tables],
            "bytes": self.bytes,
            "inputs": list(self.inputs),
            "input_text": self.input_text,
        }
        return Committable(slot=0, document=Document(kind=KIND, version=VERSION, body=body))

    @classmethod
    def of(cls, committable: Committable) -> "PostgresCommittable":
        """Parse a document. Raises HaltedError for a kind, version or content that this release does not know."""
        document = committable.document
        if document.kind != KIND or document.version != VERSION:
            raise _unreadable(document, f"this release reads {KIND} version {VERSION}")
        try:
            return _read(document.body)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise _unreadable(document, f"its content is damaged ({error!r})") from error

    @classmethod
    def own(cls, committable: Committable, author: Author) -> "PostgresCommittable":
        """Parse a document whose rows are to be merged or dropped. Raises HaltedError like :meth:`of`, and if they are
        not those of ``author``."""
        found = cls.of(committable)
        try:
            found.require_own(author)
        except ValueError as error:
            raise HaltedError(
                f"The committable of checkpoint {found.checkpoint} is not to be trusted: {error}. Nothing was merged "
                "or dropped for it. Find out which process acknowledged it: it acts for this job. If the store was "
                "damaged, put back a copy of it."
            ) from None
        return found

    def require_own(self, author: Author) -> None:
        """Check that it names rows of ``author`` alone: the process that merges them may have the rights of many jobs.
        Rows are found by these names, so no list of tables reaches those of another. Raises ValueError."""
        if not author.made(self.job, self.sink, self.generation):
            raise ValueError(
                f"it names rows of sink {self.sink} of job {self.job}, generation {self.generation}, which is not "
                f"{author}"
            )


def check_committable(document: Document, base: Document | None, author: Author) -> None:
    """Validate a committable before the coordinator accepts it.

    Raises ValueError for an unknown version, for a document that lacks what is needed to merge its rows, and for one
    that names the rows of another.
    """
    if document.version != VERSION:
        raise ValueError(f"it has version {document.version}, and this program knows only version {VERSION}")
    try:
        found = _read(document.body)
    except (KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"it lacks what is needed to merge its rows ({error!r})") from None
    found.require_own(author)


def _read(body: Mapping[str, Any]) -> PostgresCommittable:
    schema, name = body["target"]
    tables: Sequence[Mapping[str, Any]] = body["tables"]
    return PostgresCommittable(
        system=str(body["system"]["id"]),
        database=str(body["system"]["database"]),
        timeline=int(body["system"]["timeline"]),
        job=str(body["job"]),
        sink=str(body["sink"]),
        generation=int(body["generation"]),
        checkpoint=int(body["checkpoint"]),
        store=str(body["store"]),
        token=str(body["token"]),
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


def _unreadable(document: Document, why: str) -> HaltedError:
    return HaltedError(
        f"The committable is a {document.kind!r} document of version {document.version}: {why}. Its rows were neither "
        "merged nor dropped. Use the release that wrote it, or a newer one."
    )
