"""Carries decisions out: commits completed checkpoints beside the running job, proves it, reports it."""

import logging
from collections.abc import Callable
from dataclasses import replace

from coordinator.client.session import Session
from coordinator.errors import HaltedError, OncewardError
from coordinator.killpoints import KillPoint, kill_point
from coordinator.pipeline.interfaces import Committer, Sink, Source
from coordinator.pipeline.journal import Journal
from coordinator.pipeline.runtime import THREADS, Runtime
from coordinator.protocol.answers import Verdict
from coordinator.protocol.values import NO_CHECKPOINT, CheckpointId, Claim, Committable, Document, Outcome, Settlement

_log = logging.getLogger("onceward.pipeline")


class Settler:
    """One thread, one checkpoint at a time: visibility stays in order."""

    def __init__(
        self,
        *,
        session: Session,
        source: Source,
        sink: Sink,
        committer: Committer,
        journal: Journal,
        on_settled: Callable[[CheckpointId], None],
        on_error: Callable[[OncewardError], None],
        runtime: Runtime = THREADS,
    ) -> None:
        self._session = session
        self._source = source
        self._sink = sink
        self._committer = committer
        self._journal = journal
        self._on_settled = on_settled
        self._on_error = on_error
        self._worker = runtime.worker("onceward-settle")
        self._lock = runtime.lock()
        self._work: dict[CheckpointId, tuple[tuple[Committable, ...], Document | None]] = {}
        self._submitted: set[CheckpointId] = set()
        self._settlements: dict[CheckpointId, tuple[Settlement, ...]] = {}
        self._closing = False
        self.settled = NO_CHECKPOINT
        """The newest checkpoint that is settled, or had nothing to settle."""

    def expect(
        self, checkpoint: CheckpointId, committables: tuple[Committable, ...], positions: Document | None
    ) -> None:
        """Remember what to commit if ``checkpoint`` is completed."""
        with self._lock:
            self._work[checkpoint] = (committables, positions)
            # Only what can never be committed or aborted again: an idle job burns an id each second while the brokers
            # may take minutes to answer for the last checkpoint that wrote something.
            for old in [c for c, (held, _) in self._work.items() if c < checkpoint and (c <= self.settled or not held)]:
                del self._work[old]

    def forget(self, checkpoint: CheckpointId) -> None:
        """The decision went against ``checkpoint``."""
        with self._lock:
            self._work.pop(checkpoint, None)

    def unsettled(self) -> tuple[Committable, ...]:
        """Committables that only a decision may end: of checkpoints completed, or acknowledged and not yet decided."""
        with self._lock:
            return tuple(
                committable
                for checkpoint, (committables, _) in self._work.items()
                if checkpoint > self.settled
                for committable in committables
            )

    def complete(self, checkpoint: CheckpointId) -> None:
        """Settle ``checkpoint``; repeated instructions settle it once and report the outcome again."""
        with self._lock:
            again = checkpoint in self._submitted and checkpoint not in self._settlements
            if again or checkpoint not in self._work or self._closing:
                return  # a closing driver leaves what it has not begun to the next generation
            self._submitted.add(checkpoint)
            self._worker.submit(lambda: self._settle_safely(checkpoint))

    def close(self, *, wait: bool) -> None:
        with self._lock:
            self._closing = True
        self._worker.close(wait=wait)

    def _settle_safely(self, checkpoint: CheckpointId) -> None:
        try:
            self.settle(checkpoint)
        except OncewardError as error:
            self._on_error(error)
        except Exception as error:  # noqa: BLE001 - handed to the main thread, which ends the generation with it
            _log.exception("settling checkpoint %s failed", checkpoint)
            failure = OncewardError(
                f"Settling checkpoint {checkpoint} failed with {error!r}. It stays completed; its commits are repeated "
                "by the next generation."
            )
            self._on_error(failure)

    def _named(
        self, settlements: tuple[Settlement, ...], committables: tuple[Committable, ...]
    ) -> tuple[Settlement, ...]:
        """What is not proved committed must name its records, in the store and for whoever reads it."""
        by_slot = {committable.slot: committable for committable in committables}
        return tuple(
            settlement
            if settlement.outcome is Outcome.COMMITTED
            else replace(
                settlement, evidence=f"{self._committer.describe(by_slot[settlement.slot])}. {settlement.evidence}"
            )
            for settlement in settlements
        )

    def settle(self, checkpoint: CheckpointId) -> None:
        """Commit, prove, report; then show the positions to lag tools and renew the claim."""
        committables, positions = self._work[checkpoint]
        if checkpoint not in self._settlements:
            kill_point(KillPoint.DRIVER_AFTER_DECISION)
            settlements = tuple(self._committer.commit(committables, give_up=lambda: self._closing))
            if len(settlements) < len(committables):
                return  # leaving: nothing is known of the others, the next generation asks again
            kill_point(KillPoint.DRIVER_AFTER_END_TXN)
            self._settlements = {checkpoint: self._named(settlements, committables)}
        settlements = self._settlements[checkpoint]
        answer = self._session.settle(checkpoint, self._sink.participant.name, settlements)
        if answer.verdict not in (Verdict.ACCEPTED, Verdict.DUPLICATE, Verdict.TOO_LATE):
            raise OncewardError(
                f"The coordinator refused the outcomes of checkpoint {checkpoint}: {answer.verdict.value}: "
                f"{answer.detail}. What Kafka has committed stays committed; the next generation reports it again."
            )
        if any(settlement.outcome is not Outcome.COMMITTED for settlement in settlements):
            raise HaltedError(_halt_message(checkpoint, settlements))
        kill_point(KillPoint.DRIVER_AFTER_SETTLE)
        newly = checkpoint > self.settled
        with self._lock:
            self.settled = CheckpointId(max(checkpoint, self.settled))
        if not newly:
            return
        self._sink.settled(checkpoint, committables)
        self._on_settled(checkpoint)
        self._journal.tell("settled", checkpoint=checkpoint, transactions=len(committables))
        self._sink.write_claim(
            Claim(store_id=self._session.grant.store_id, generation=self._session.generation, settled=checkpoint)
        )
        kill_point(KillPoint.DRIVER_AFTER_CLAIM_RENEWAL)
        if positions is not None:
            self._source.mirror(positions)


def _halt_message(checkpoint: CheckpointId, settlements: tuple[Settlement, ...]) -> str:
    unproved = [settlement for settlement in settlements if settlement.outcome is not Outcome.COMMITTED]
    lines = [f"{settlement.outcome.value}: {settlement.evidence}" for settlement in unproved]
    return (
        f"Checkpoint {checkpoint} is completed, but {len(unproved)} of its {len(settlements)} transactions are not "
        "proved committed. The job halts: nothing is repeated and nothing is skipped until a person has decided.\n  "
        + "\n  ".join(lines)
    )
