"""A sink of a table for one run of a job, on the driver."""

from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

from onceward.common.errors import CheckpointFailedError, ConfigurationError
from onceward.connectors.interfaces import JobContext, Origin, Refusal, ReplayRefusedError, Resource, SinkSession
from onceward.connectors.slots import SlotContext
from onceward.connectors.tasks import CheckpointTask, Vote
from onceward.protocol.committing import PreCommitted
from onceward.protocol.values import CheckpointId, Committable, Generation, JsonObject, Participant
from onceward.sinks.lake.control.staged import missing
from onceward.sinks.lake.control.system import LakeSystem
from onceward.sinks.lake.control.tables import LakeTable
from onceward.sinks.lake.control.transactions import next_number
from onceward.sinks.lake.executor.writer import REFUSED, LakeSlotWriter, few_records
from onceward.sinks.lake.identifiers import app_id

__all__ = ["VOTE_BYTES", "LakeSession"]

VOTE_BYTES = 256 * 2**10
"""Of records with which a slot votes: not worth a file."""


class LakeSession(SinkSession):
    """Implements :class:`Replays`, too."""

    def __init__(self, participant: Participant, context: JobContext, system: LakeSystem, table: LakeTable) -> None:
        """``table``: as it was when the sink was connected."""
        self.participant = participant
        self._context = context
        self._system = system
        self._id, self._uri = table.id, table.uri
        self._storage = table.storage
        self._generation: Generation | None = None
        self._number: int | None = None
        """The last that this generation has given to a committable; None before its first."""
        self._together = ""
        """See :attr:`LakeCommittable.together`."""

    @property
    @abstractmethod
    def columns(self) -> Mapping[str, Any]:
        """The type of each column in the files that are written, as the table's schema has it."""

    @abstractmethod
    def write(self) -> LakeSlotWriter:
        """See :meth:`SinkSession.write`."""

    def writes(self) -> Collection[Resource]:
        return [Resource(kind=f"{self.participant.kind} table", cluster=self._id, name=self._uri)]

    def begin_generation(self, generation: Generation) -> None:
        self._generation, self._number = generation, None

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
            raise ConfigurationError("This sink has no generation. Call begin_generation() first.")
        kind = self._system.committable
        files = [kind.read_file(raw) for vote in votes for raw in vote.body.get("files", ())]
        gone = missing(self._storage, files)
        if gone:
            raise CheckpointFailedError(
                f"{len(gone)} of the {len(files)} files of checkpoint {checkpoint} are gone from {self._uri}, the first"
                f" is {gone[0]}. Nothing of it is visible; its records are read again. If they were deleted as files "
                "that the table does not have, such as by a VACUUM, give it a longer retention."
            )
        files += map(kind.read_file, self._join(checkpoint, generation, votes))
        if not files:
            return PreCommitted(committables=())
        found = None
        if self._number is None:
            # All that earlier generations have completed is committed before a generation writes anything.
            table = self._system.load()
            if table.id != self._id:
                raise CheckpointFailedError(
                    f"The table {self._uri} was replaced by another one: its id was {self._id} and is {table.id}. "
                    "Nothing of the checkpoint is visible. Start the job again if it shall write there."
                )
            found = table.transaction(app_id(self._context.job, self.participant.name))
        self._number = next_number(found, self._number)
        origin = Origin.of_all(origins)
        made = kind(
            slot=0,
            table_id=self._id,
            uri=self._uri,
            job=self._context.job,
            sink=self.participant.name,
            generation=generation,
            checkpoint=checkpoint,
            transaction=self._number,
            columns=self.columns,
            files=files,
            bytes=sum(one.size for one in files),
            inputs=origin.inputs,
            input_text=origin.text,
            after=self._system.last_commit(self._context.job, self.participant.name),
            together=self._together,
        )
        return PreCommitted(committables=(made.to_committable(),))

    def _join(self, checkpoint: CheckpointId, generation: Generation, votes: Sequence[Vote]) -> Sequence[JsonObject]:
        """Write the records that votes have into one file, or one for each partition; return the files."""
        task = CheckpointTask(
            job=self._context.job, generation=generation, checkpoint=checkpoint, splits=(), columns=(), sinks={}
        )
        writer = replace(self.write(), vote_bytes=0)
        slot = writer.open(SlotContext(task=task, sink=self.participant.name, slot=0, attempt=0))
        try:
            for batch in chain.from_iterable(map(few_records, votes)):
                slot.write(batch)
            files: Sequence[JsonObject] = slot.finish().body.get("files", ())
        except BaseException:
            slot.abandon()
            raise
        return files

    def origin(self, committable: Committable) -> Origin:
        """See :meth:`Replays.origin`."""
        made = self._system.committable.of(committable)
        return Origin(inputs=made.inputs, replayable=bool(made.inputs), text=made.input_text, whole=True)

    def check_destination(self, lost: Sequence[Committable]) -> None:
        """See :meth:`Replays.check_destination`. Raises StorageError."""
        now = self._system.load().id
        for wanted in map(self._system.committable.of, lost):
            if wanted.table_id != now:
                raise ReplayRefusedError(
                    f"the files were for the table with id {wanted.table_id}, and the table at {self._uri} now has id "
                    f"{now}"
                )

    def on_settled(self, checkpoint: CheckpointId, committables: Sequence[Committable]) -> None:
        """Nothing is kept for a settled checkpoint."""

    def system(self) -> LakeSystem:
        return self._system

    def close(self) -> None:
        """Nothing is open between calls."""
