"""The batch that Spark has open, as a source: what there is to read is the batch that is offered."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from onceward.common.errors import HaltedError
from onceward.connectors.interfaces import (
    Finding,
    JobContext,
    Plan,
    ReplayRefusedError,
    Resource,
    Source,
    SplitReader,
)
from onceward.connectors.tasks import Digest
from onceward.driver.streaming.batches import (
    KIND,
    Batch,
    Found,
    Place,
    batch_of,
    describe_refusal,
    digest_of,
    place,
    positions_after,
    positions_before_the_first,
    with_digest,
)
from onceward.driver.streaming.handover import Handover
from onceward.protocol.values import Document, JobName, JsonObject, Participant, ParticipantName, Role

__all__ = ["BatchSource"]


class BatchSource(Source):
    """Plans the batches of one query. Spark reads them, so there is no reader."""

    schema = ""
    copied_columns = ()

    def __init__(self, job: JobName, handover: Handover, *, continue_at: int | None = None) -> None:
        """``continue_at``: see :func:`place`."""
        self.participant = Participant(name=ParticipantName("spark"), role=Role.SOURCE, kind=KIND)
        self._job = job
        self._handover = handover
        self._continue_at = continue_at
        self._planned: Found | None = None
        """What was offered when the last plan was made."""

    def open(self, context: JobContext) -> None:
        """Do nothing: Spark has the clients."""

    def preflight(self) -> Sequence[Finding]:
        return []

    def resolve(self) -> Document:
        self._handover.recovered(None)
        return positions_before_the_first()

    def restore(self, positions: Document) -> None:
        self._handover.recovered(self._read(positions))

    def wakes(self, wake: Callable[[], None]) -> None:
        self._handover.on_offer(wake)

    def has_news(self) -> bool:
        return self._handover.offered is not self._planned

    def plan(self, base: Document) -> Plan:
        """Return the offered batch if it follows ``base``.

        Raises HaltedError if it may not be written, or if an earlier one had other records when it ran again.
        """
        if self._handover.refusal is not None:
            raise self._handover.refusal
        completed, found = self._read(base), self._handover.offered
        self._planned = found
        idle = Plan(splits=(), positions=base, records=0, lag=None, finished=False)
        if found is None:
            return idle
        match where := place(completed, found, continue_at=self._continue_at):
            case Place.COMPLETED:
                assert completed is not None
                if completed.in_parts or digest_of(base) == str(Digest()):
                    # it has no transactions, so nothing has to be settled and nothing reports that it is
                    self._handover.settled(found.batch, digest_of(base))
                return idle
            case Place.SECOND_CALL:
                return replace(idle, positions=with_digest(positions_after(found), digest_of(base)))
            case Place.NEXT if found.skipped:
                return replace(idle, positions=with_digest(positions_after(found), str(Digest())))
            case Place.NEXT:
                number = found.batch.number
                return Plan(
                    splits=({"batch": number},),
                    positions=positions_after(found),
                    records=1,
                    lag=None,
                    finished=False,
                    counted=False,
                    sizing={"batch": number},
                )
            case _:
                assert completed is not None
                raise HaltedError(describe_refusal(self._job, where, completed, found))

    def read(self) -> SplitReader:
        raise NotImplementedError("Spark reads its batches itself")

    def snapshot(self, plan: Plan) -> Document:
        return with_digest(plan.positions, self._handover.digest)

    def on_settled(self, positions: Document) -> None:
        batch = self._read(positions)
        if batch is not None:
            self._handover.settled(batch, digest_of(positions))

    def describe(self, splits: Sequence[JsonObject]) -> str:
        return ", ".join(f"batch {split['batch']}" for split in splits)

    def check_replay(self, splits: Sequence[JsonObject], positions: Document) -> None:
        """Accept: Spark has not written its commit log for a batch that is not settled, so it runs the batch now or
        when the query starts, with the same input. The run itself finds out if the checkpointLocation was replaced."""
        if self._read(positions) is None:
            raise ReplayRefusedError("the positions name no batch")

    def reads(self, resource: Resource) -> bool:
        """False: which topics the query reads is known only to Spark."""
        return False

    def close(self) -> None:
        """Do nothing: Spark has the clients."""

    def _read(self, positions: Document) -> Batch | None:
        try:
            return batch_of(positions)
        except ValueError as error:
            raise HaltedError(
                f"The stored positions of job {self._job} cannot be read: {error}. Nothing was written. Run the job "
                "with the program that wrote them, under its own name, or restore a checkpoint that this one can read."
            ) from None
