"""A Delta sink for one run of a job, on the driver."""

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onceward.common.errors import CheckpointFailedError, ConfigurationError
from onceward.connectors.interfaces import (
    Chosen,
    Finding,
    JobContext,
    Origin,
    Refusal,
    ReplayRefusedError,
    Resource,
    SinkSession,
)
from onceward.connectors.tasks import Vote
from onceward.protocol.committing import PreCommitted
from onceward.protocol.values import CheckpointId, Committable, Generation
from onceward.sinks.delta.control.evolving import add_columns
from onceward.sinks.delta.control.system import DeltaSystem
from onceward.sinks.delta.control.table import LoadedTable
from onceward.sinks.delta.control.transactions import next_version
from onceward.sinks.delta.documents import DataFile, DeltaCommittable
from onceward.sinks.delta.driver import columns, preflight
from onceward.sinks.delta.executor.writer import REFUSED, DeltaSlotWriter
from onceward.sinks.delta.identifiers import app_id

if TYPE_CHECKING:
    from onceward.sinks.delta.driver.sink import DeltaSink

__all__ = ["DeltaSession"]

_INDEXED = "delta.dataSkippingNumIndexedCols"


class DeltaSession(SinkSession):
    """Implements :class:`Replays`, too."""

    def __init__(self, sink: "DeltaSink", context: JobContext, table: LoadedTable) -> None:
        """``table``: as it was when the sink was connected."""
        self.participant = sink.participant
        self._location = sink.location
        self._storage = sink.location.storage()
        self._context = context
        self._table = table
        self._fields: Sequence[Mapping[str, Any]] = table.fields()
        self._evolves = sink.evolves
        self._new: Sequence[Mapping[str, Any]] = ()
        """Columns that the records have and the table lacks: they are added before anything is written."""
        self._generation: Generation | None = None
        self._transaction: int | None = None
        """The last that this generation has given to a committable; None before its first."""

    def preflight(self) -> Sequence[Finding]:
        return preflight.examine(self._table, self._storage, self._location.uri, self._context.job)

    def writes(self) -> Collection[Resource]:
        return [Resource(kind="Delta table", cluster=self._table.id, name=self._location.uri)]

    def begin_generation(self, generation: Generation) -> None:
        self._generation, self._transaction = generation, None

    def choose(self, given: Sequence[tuple[str, str]]) -> Sequence[Chosen]:
        self._new = columns.new_fields(given, self._fields, self._location.uri) if self._evolves else ()
        return columns.choose(given, [*self._fields, *self._new], self._location.uri)

    def write(self) -> DeltaSlotWriter:
        if self._new:
            self._table = add_columns(self._location, self._new)
            self._fields, self._new = self._table.fields(), ()
        indexed = int(self._table.configuration.get(_INDEXED, "32"))
        columns = self._table.arrow_schema().serialize().to_pybytes()
        return DeltaSlotWriter(self._location, columns, self._table.partition_columns, indexed=indexed)

    def explain(self, cause: str) -> Refusal | None:
        """A value that a column cannot hold is the record's fault."""
        return Refusal(text=cause.rstrip(". "), by_record=True) if REFUSED in cause else None

    def hides_until_decided(self) -> bool:
        return True

    def pre_commit(
        self, checkpoint: CheckpointId, votes: Sequence[Vote], origins: Sequence[Origin], *, leftovers: bool
    ) -> PreCommitted:
        """See :meth:`SinkSession.pre_commit`. One committable has the files of all slots. Raises StorageError."""
        generation = self._generation
        if generation is None:
            raise ConfigurationError("This Delta sink has no generation. Call begin_generation() first.")
        files = [DataFile.from_json(raw) for vote in votes for raw in vote.body.get("files", ())]
        if not files:
            return PreCommitted(committables=())
        gone = [one.path for one in files if self._storage.size(one.path) != one.size]
        if gone:
            raise CheckpointFailedError(
                f"{len(gone)} of the {len(files)} files of checkpoint {checkpoint} are gone from {self._location.uri}, "
                f"the first is {gone[0]}. Nothing of it is visible; its records are read again. If a VACUUM has "
                "deleted them, give it a longer retention."
            )
        found = None
        if self._transaction is None:
            # All that earlier generations have completed is committed before a generation writes anything.
            table = LoadedTable(self._location)
            if table.id != self._table.id:
                raise CheckpointFailedError(
                    f"The table {self._location.uri} was replaced by another one: its id was {self._table.id} and is "
                    f"{table.id}. Nothing of the checkpoint is visible. Start the job again if it shall write there."
                )
            found = table.transaction(app_id(self._context.job, self.participant.name))
        self._transaction = next_version(found, self._transaction)
        origin = Origin.of_all(origins)
        made = DeltaCommittable(
            slot=0,
            table_id=self._table.id,
            uri=self._location.uri,
            job=self._context.job,
            sink=self.participant.name,
            generation=generation,
            checkpoint=checkpoint,
            transaction=self._transaction,
            columns={str(one["name"]): one["type"] for one in self._fields},
            files=files,
            bytes=sum(vote.bytes for vote in votes),
            inputs=origin.inputs,
            input_text=origin.text,
        )
        return PreCommitted(committables=(made.to_committable(),))

    def origin(self, committable: Committable) -> Origin:
        made = DeltaCommittable.of(committable)
        return Origin(inputs=made.inputs, replayable=bool(made.inputs), text=made.input_text, whole=True)

    def check_destination(self, lost: Sequence[Committable]) -> None:
        """See :meth:`Replays.check_destination`. Raises StorageError."""
        now = LoadedTable(self._location).id
        for wanted in map(DeltaCommittable.of, lost):
            if wanted.table_id != now:
                raise ReplayRefusedError(
                    f"the files were for the table with id {wanted.table_id}, and the table at {self._location.uri} "
                    f"now has id {now}"
                )

    def on_settled(self, checkpoint: CheckpointId, committables: Sequence[Committable]) -> None:
        """Nothing is kept for a settled checkpoint."""

    def system(self) -> DeltaSystem:
        return DeltaSystem(self._location, generation=lambda: self._generation, links=self._context.links)

    def close(self) -> None:
        """Nothing is open between calls."""
