"""Run a checkpoint on the driver: from its trigger to its acknowledgement, or to its decline and abort."""

from dataclasses import dataclass

from onceward.coordinator.client.session import Session
from onceward.coordinator.errors import CheckpointFailedError, OncewardError
from onceward.coordinator.killpoints import KillPoint, kill_point
from onceward.coordinator.pipeline.causes import shorten
from onceward.coordinator.pipeline.diagnosis import Diagnosis
from onceward.coordinator.pipeline.interfaces import Plan
from onceward.coordinator.pipeline.mailbox import GenerationFailedError, Mailbox
from onceward.coordinator.pipeline.members import Members
from onceward.coordinator.pipeline.origins import origins_of
from onceward.coordinator.pipeline.settler import Settler
from onceward.coordinator.pipeline.timings import of_checkpoint
from onceward.coordinator.pipeline.transaction_age import Ages, good_for
from onceward.coordinator.protocol.answers import Abort, Decision, Trigger, Verdict
from onceward.coordinator.protocol.values import NO_CHECKPOINT, CheckpointId, Document, Snapshot

__all__ = ["CheckpointRunner"]

_IDLE_POLL = 0.05
"""Seconds between polls for new data while a triggered checkpoint waits for some."""
_IDLE_WAIT = 1.0
"""Seconds after which a checkpoint without new data is acknowledged unchanged, or a quarter of the checkpoint timeout
if that is less."""
_SWEEP_INTERVAL = 30.0
"""Seconds between sweeps of an idle job; a busy job sweeps in every checkpoint."""
_SETTLE_LIMIT = 60.0
"""Seconds to finish decided commits after Spark is lost; the next generation commits the rest."""


@dataclass(frozen=True, kw_only=True)
class _Answers:
    """What source and sink answer to one trigger."""

    base: CheckpointId
    source: Snapshot
    sink: Snapshot
    good_until: float | None = None
    """Deadline for committing the checkpoint, on the runtime's monotonic clock; None when it has none."""


class CheckpointRunner:
    """Runs the checkpoints of one generation, one at a time, on the driver's main thread."""

    def __init__(
        self,
        members: Members,
        session: Session,
        settler: Settler,
        mailbox: Mailbox,
        ages: Ages,
        *,
        positions: dict[CheckpointId, Document],
    ) -> None:
        """``positions``: those of the checkpoint that the generation continues from, by its id."""
        self._m = members
        self._session = session
        self._settler = settler
        self._mailbox = mailbox
        self._ages = ages
        self._diagnosis = Diagnosis(members, session.generation, mailbox)
        self._positions = dict(positions)
        self._answers: dict[CheckpointId, _Answers] = {}
        self._last_run = NO_CHECKPOINT
        self._last_sweep = members.runtime.monotonic()
        self._plan: Plan | None = None
        """What the running checkpoint's Spark job reads; None before the job."""
        self.finished = False
        """True once a bounded input is used up."""
        self.failed_records = 0
        """Records in the plan of the most recent failed checkpoint."""
        self.cause: str | None = None
        """Cause of the last failed checkpoint; cleared when a checkpoint succeeds."""

    def run(self, trigger: Trigger) -> None:
        """Run the checkpoint and acknowledge it, or decline and abort it. Raises the error that ends the generation."""
        checkpoint, base = trigger.checkpoint, trigger.base
        if checkpoint <= self._last_run:  # triggered again: do not run it again, only resend its answers
            if checkpoint in self._answers:
                self._send(checkpoint)
            return
        if self._mailbox.stopping:
            return  # a stopping driver starts no checkpoint
        self._last_run = checkpoint
        self._forget_undone(base)
        kill_point(KillPoint.DRIVER_AFTER_TRIGGER)
        self._plan = None
        self._mailbox.running(checkpoint)
        try:
            answers = self._work(checkpoint, base)
        except Exception as error:  # noqa: BLE001 - sorted by _failed
            self._failed(checkpoint, error)
            return
        finally:
            self._mailbox.running(None)
        self.cause = None
        self._answers[checkpoint] = answers
        source, sink = answers.source, answers.sink
        self._settler.expect(checkpoint, sink.committables, source.positions, records=source.records)
        self._settler.prepare(checkpoint)
        self._send(checkpoint)

    def abort(self, abort: Abort) -> None:
        """Carry out an abort, and those since its base that the driver has missed: only the last one is delivered."""
        missed = [c for c in self._answers if abort.base < c < abort.checkpoint]
        for checkpoint in (*missed, abort.checkpoint):
            self._abandon(checkpoint, abort.reason.value)

    def abandon_later(self, checkpoint: CheckpointId) -> None:
        """Abort what came after ``checkpoint``, whose lost slots are written again."""
        for later in [c for c in self._answers if c > checkpoint]:
            self._abandon(later, f"lost slots of checkpoint {checkpoint} are written again first")

    def require_spark(self) -> None:
        """Raise OncewardError when Spark is gone, after settling what is decided."""
        if not self._m.tasks.alive():
            give_up = self._m.runtime.monotonic() + _SETTLE_LIMIT
            while self._settler.unsettled() and self._m.runtime.monotonic() < give_up:
                self._m.runtime.sleep(0.05)
            raise OncewardError(
                "Spark's JVM is gone. Completed checkpoints are committed now or at the next start; the running "
                "checkpoint is aborted by the next start, its records are read again. Start the program again."
            )

    def _forget_undone(self, base: CheckpointId) -> None:
        """Discard answers that came to nothing: ``base`` is completed, and no later checkpoint is."""
        for undone in [c for c in self._answers if c > base]:
            if self._answers[undone].sink.committables:
                self._abandon(undone, "the next checkpoint builds on an earlier one")
            else:
                del self._answers[undone]
        self._answers = {c: answers for c, answers in self._answers.items() if c == base}
        if base not in self._positions and base != NO_CHECKPOINT:
            raise GenerationFailedError(
                f"The coordinator names checkpoint {base} as base, whose positions this driver does not know. "
                "Nothing was read; the next generation gets them from the store."
            )
        self._positions = {c: positions for c, positions in self._positions.items() if c == base}
        if base in self._answers and self._answers[base].source.records:
            self._settler.passed(base)

    # -- the work

    def _work(self, checkpoint: CheckpointId, base: CheckpointId) -> _Answers:
        """Plan, read, transform, write and pre-commit."""
        m = self._m
        self.require_spark()
        if base == NO_CHECKPOINT:
            self._positions[checkpoint] = start = m.source.resolve()
            return _Answers(base=base, source=Snapshot(positions=start, next_at_once=True), sink=Snapshot())
        positions = self._positions[base]
        plan, planning = self._next_plan(checkpoint, positions)
        kill_point(KillPoint.DRIVER_AFTER_PLAN)
        self._positions[checkpoint] = plan.positions
        if plan.records == 0:
            self._sweep_now_and_then()
            unchanged = plan.positions == positions
            self.finished = plan.finished and unchanged
            source = Snapshot(positions=plan.positions, unchanged=unchanged)
            return _Answers(base=base, source=source, sink=Snapshot(unchanged=unchanged))
        self._mailbox.raise_error()
        if self._mailbox.aborted(checkpoint):
            raise CheckpointFailedError(f"Checkpoint {checkpoint} was aborted before its Spark job began.")
        self._plan = plan
        return self._write(checkpoint, base, plan, planning)

    def _next_plan(self, checkpoint: CheckpointId, positions: Document) -> tuple[Plan, float]:
        """Return a plan and the seconds that planning took. Waits briefly for new data; a stop, an abort or a person
        who waits for the checkpoint ends the wait."""
        give_up = self._m.runtime.monotonic() + min(_IDLE_WAIT, self._m.settings.seconds("timeout") / 4)
        while True:
            began = self._m.runtime.monotonic()
            plan = self._m.source.plan(positions)
            ended = self._m.runtime.monotonic()
            if plan.records or plan.finished or plan.positions != positions or ended > give_up:
                return plan, ended - began
            if self._mailbox.wait(lambda: self._disturbed(checkpoint), _IDLE_POLL):
                return plan, ended - began

    def _disturbed(self, checkpoint: CheckpointId) -> bool:
        """True when waiting for data in ``checkpoint`` must end."""
        return self._mailbox.stopping or self._mailbox.aborted(checkpoint) or self._mailbox.hurried(checkpoint)

    def _sweep_now_and_then(self) -> None:
        """Sweep an idle job at intervals: a late zombie of an earlier generation must not hold readers back."""
        if self._m.runtime.monotonic() - self._last_sweep >= _SWEEP_INTERVAL:
            swept = self._m.committer.sweep(self._m.job, keep=self._settler.unsettled())
            self._last_sweep = self._m.runtime.monotonic()
            if swept:
                self._m.journal.tell("swept", transactions=len(swept))

    def _write(self, checkpoint: CheckpointId, base: CheckpointId, plan: Plan, planning: float) -> _Answers:
        """Run the plan's Spark job and pre-commit what it wrote. ``planning``: seconds that the plan took."""
        m = self._m
        m.progress.began(checkpoint)
        began = m.runtime.monotonic()
        try:
            votes = m.tasks.run(generation=self._session.generation, checkpoint=checkpoint, plan=plan)
            voted = m.runtime.monotonic()
            kill_point(KillPoint.DRIVER_AFTER_VOTES)
            origins = origins_of(m.tasks.inputs(plan, len(votes)))
            committables = m.sink.pre_commit(checkpoint, votes, origins, unsettled=self._settler.unsettled())
        except Exception:
            m.source.observe_run(plan, m.runtime.monotonic() - began, failed=True)
            raise
        # Measured from before the first transaction began, on this process's clock: no transaction is older.
        ages = [age for age in map(m.committer.age, committables) if age is not None]
        self._ages.began(ages, began)
        lasting = good_for(age.timeout for age in ages)
        proved = m.runtime.monotonic()
        seconds = proved - began
        m.source.observe_run(plan, seconds)
        kill_point(KillPoint.DRIVER_AFTER_PRE_COMMIT)
        m.progress.read(plan.records, plan.lag)
        records, size = sum(vote.records for vote in votes), sum(vote.bytes for vote in votes)
        m.journal.tell(
            "pre-committed",
            checkpoint=checkpoint,
            base=base,
            transactions=len(committables),
            read=plan.records,
            written=records,
            seconds=round(seconds, 3),
            steps={
                "plan": round(planning, 6),
                **of_checkpoint((vote.steps for vote in votes), voted - began),
                "prove": round(proved - voted, 6),
            },
            **plan.sizing,
        )
        return _Answers(
            base=base,
            source=Snapshot(
                positions=m.source.snapshot(plan),
                records=plan.records,
                # start the next checkpoint at once when there is a backlog, or when the job has nothing left to do
                next_at_once=plan.cut_for_time or plan.finished,
            ),
            sink=Snapshot(committables=committables, records=records, bytes=size),
            good_until=None if lasting is None else began + lasting,
        )

    # -- the answers

    def _send(self, checkpoint: CheckpointId) -> None:
        """Acknowledge for source and sink. From the first call on, only a decision may end the transactions."""
        m, answers = self._m, self._answers[checkpoint]
        snapshots = {m.source.participant.name: answers.source, m.sink.participant.name: answers.sink}
        try:
            replies = self._session.acknowledge(
                checkpoint, answers.base, snapshots, good_for=lambda: self._left(answers.good_until)
            )
        except CheckpointFailedError as error:  # too large: nothing was sent
            self._session.decline(checkpoint, m.sink.participant.name, shorten(str(error)))
            self._abandon(checkpoint, shorten(str(error)))
            return
        for reply in replies:
            match reply.verdict:
                case Verdict.ACCEPTED | Verdict.DUPLICATE:
                    pass
                case Verdict.TOO_LATE if reply.decision is Decision.COMPLETED:
                    pass
                case Verdict.TOO_LATE | Verdict.EXPIRED | Verdict.CONFLICT if reply.decision is Decision.ABORTED:
                    self._abandon(checkpoint, reply.detail or reply.verdict.value)
                    return
                case _:
                    raise GenerationFailedError(
                        f"The coordinator refused the acknowledgement of checkpoint {checkpoint}: "
                        f"{reply.verdict.value}: {reply.detail}. "
                        "It stays undecided until the next generation aborts it; no record is lost."
                    )
        kill_point(KillPoint.DRIVER_AFTER_ACKNOWLEDGE)

    def _left(self, good_until: float | None) -> float | None:
        """Return the seconds until a deadline; None when there is none."""
        return None if good_until is None else good_until - self._m.runtime.monotonic()

    def _failed(self, checkpoint: CheckpointId, error: Exception) -> None:
        """Decline and abort before the acknowledgement. The coordinator decides whether the generation goes on."""
        self._mailbox.raise_error()
        known = error if isinstance(error, OncewardError) else self._m.source.diagnose(error)
        if self._mailbox.aborted(checkpoint):
            reason = "aborted by the coordinator"
        else:
            reason = str(known) if known is not None else self._diagnosis.describe(checkpoint, self._plan, error)
            self._mailbox.raise_error()
            self.cause = f"{reason} (checkpoint {checkpoint})"
            self.failed_records = self._plan.records if self._plan is not None else 0
            self._session.decline(checkpoint, self._m.sink.participant.name, shorten(reason))
        self._abandon(checkpoint, shorten(reason))
        if known is not None and not isinstance(known, CheckpointFailedError):
            raise known from error
        if not self._mailbox.stopping:
            self.require_spark()

    def _abandon(self, checkpoint: CheckpointId, reason: str) -> None:
        """Abort the open transactions of a checkpoint that was aborted, or was never acknowledged."""
        m = self._m
        recorded = self._answers.pop(checkpoint, None)
        committables = recorded.sink.committables if recorded is not None else ()
        self._settler.forget(checkpoint)
        if recorded is not None:
            m.committer.abort(committables)
        swept = m.committer.sweep(m.job, keep=self._settler.unsettled())
        m.progress.ended(checkpoint)
        transactions = len(swept) + len(committables)
        m.journal.tell("aborted", checkpoint=checkpoint, transactions=transactions, reason=reason)
        kill_point(KillPoint.DRIVER_AFTER_ABORT)
