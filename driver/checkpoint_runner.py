"""Run a checkpoint on the driver: from its trigger to its acknowledgement, or to its decline and abort."""

from types import MappingProxyType

from onceward.client.session import Session
from onceward.common.errors import CheckpointFailedError, OncewardError
from onceward.common.killpoints import KillPoint, kill_point
from onceward.driver.causes import shorten
from onceward.driver.checkpoint_tasks import CheckpointTasks, Turn
from onceward.driver.checkpoint_writer import Answers, CheckpointWriter, require_spark
from onceward.driver.diagnosis import Diagnosis
from onceward.driver.mailbox import GenerationFailedError, Mailbox
from onceward.driver.members import Members
from onceward.driver.outputs import Outputs
from onceward.driver.settler import Settler
from onceward.driver.transaction_age import Ages
from onceward.protocol.answers import Abort, Answer, Decision, Trigger, Verdict
from onceward.protocol.phases import Phases
from onceward.protocol.values import NO_CHECKPOINT, CheckpointId, Document

__all__ = ["CheckpointRunner"]


class CheckpointRunner:
    """Runs the checkpoints of one generation, one at a time, on the driver's main thread."""

    def __init__(
        self,
        members: Members,
        session: Session,
        settler: Settler,
        mailbox: Mailbox,
        ages: Ages,
        outputs: Outputs,
        tasks: CheckpointTasks,
        turn: Turn,
        *,
        positions: dict[CheckpointId, Document],
    ) -> None:
        """``positions``: those of the checkpoint that the generation continues from, by its id."""
        self._m = members
        self._session = session
        self._settler = settler
        self._mailbox = mailbox
        self._outputs = outputs
        self._tasks = tasks
        self._turn = turn
        self._writer = CheckpointWriter(members, outputs, tasks, turn, settler, ages)
        self._diagnosis = Diagnosis(members, outputs, session.generation, mailbox)
        self._positions = dict(positions)
        self._answers: dict[CheckpointId, Answers] = {}
        self._last_run = NO_CHECKPOINT
        self.failed_records = 0
        """Records in the plan of the most recent failed checkpoint."""
        self.cause: str | None = None
        """Cause of the last failed checkpoint; cleared when a checkpoint succeeds."""

    @property
    def finished(self) -> bool:
        """True once a bounded input is used up."""
        return self._writer.finished

    def run(self, trigger: Trigger) -> None:
        """Run the checkpoint and acknowledge it, or decline and abort it. Raises the error that ends the generation."""
        checkpoint, base = trigger.checkpoint, trigger.base
        if checkpoint <= max(self._last_run, self._mailbox.last_aborted() or NO_CHECKPOINT):
            if checkpoint in self._answers:  # triggered again: do not run it again, only resend its answers
                self._send(checkpoint)
            else:
                self._refuse_decided(checkpoint)
            return
        if self._mailbox.stopping:
            return  # a stopping driver starts no checkpoint; it only resends answers to a coordinator that restarted
        self._last_run = checkpoint
        self._forget_undone(base)
        kill_point(KillPoint.DRIVER_AFTER_TRIGGER)
        self._mailbox.running(checkpoint)
        try:
            answers = self._writer.write(checkpoint, base, self._positions.get(base))
        except Exception as error:  # noqa: BLE001 - sorted by _failed
            self._failed(checkpoint, error)
            return
        finally:
            self._mailbox.running(None)
        self.cause = None
        source = answers.source
        assert source.positions is not None, "a source always answers with its positions"
        self._positions[checkpoint] = source.positions
        self._answers[checkpoint] = answers
        self._settler.expect(
            checkpoint, answers.committables, source.positions, records=source.records, made=answers.made
        )
        self._send(checkpoint)

    def confirm(self) -> None:
        """Send the answers of undecided checkpoints again: a coordinator that ends the job triggers no checkpoint.

        One with an older copy of the store may lack a checkpoint that waits for its decision. Then it never decides,
        and its refusal ends the generation.
        """
        for checkpoint, answers in list(self._answers.items()):
            if checkpoint > self._mailbox.completed and answers.committables:
                self._send(checkpoint)

    def abort(self, abort: Abort) -> None:
        """Carry out an abort, and those since its base that the driver has missed: only the last one is delivered."""
        missed = [c for c in self._answers if abort.base < c < abort.checkpoint]
        for checkpoint in (*missed, abort.checkpoint):
            self._abandon(checkpoint, abort.reason.value)

    def abandon_later(self, checkpoint: CheckpointId) -> None:
        """Abort what came after ``checkpoint``, whose lost slots are written again."""
        self._tasks.end()
        for later in [c for c in self._answers if c > checkpoint]:
            self._abandon(later, f"lost slots of checkpoint {checkpoint} are written again first")

    def _forget_undone(self, base: CheckpointId) -> None:
        """Discard answers that came to nothing: ``base`` is completed, and no later checkpoint is."""
        for undone in [c for c in self._answers if c > base]:
            if self._answers[undone].committables:
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

    def _refuse_decided(self, checkpoint: CheckpointId) -> None:
        """Decline a checkpoint that came to nothing. The trigger may be late, and then this changes nothing. Raises
        GenerationFailedError if the store holds it as undecided: what this driver knows of the id is of another run."""
        reason = (
            f"Checkpoint {checkpoint} is triggered, and came to nothing before: the store was replaced by an older "
            "copy, which lacks that. No completed checkpoint is missing there, and no record is lost; the next "
            "generation continues from it."
        )
        answer = self._decline(checkpoint, shorten(reason))
        if answer.verdict is Verdict.ACCEPTED:
            raise GenerationFailedError(reason)

    def _send(self, checkpoint: CheckpointId) -> None:
        """Acknowledge for source and sink. From the first call on, only a decision may end the transactions.

        An abort that was heard before the answer, or a trigger on an earlier base, may be of a former leader, whose
        store an older copy has replaced: who takes the acknowledgement decides. What was heard since then may be of
        either, so it is asked again.
        """
        open_ = self._answers[checkpoint].committables
        while True:
            heard = self._mailbox.against(checkpoint)
            if not self._acknowledge(checkpoint):
                return
            if heard:
                self._mailbox.refute(heard)
            if not open_ or not self._mailbox.against(checkpoint):
                break
        kill_point(KillPoint.DRIVER_AFTER_ACKNOWLEDGE)

    def _acknowledge(self, checkpoint: CheckpointId) -> bool:
        """Return True if the coordinator takes the answers; else the checkpoint is aborted."""
        m, answers = self._m, self._answers[checkpoint]
        snapshots = {m.source.participant.name: answers.source, **answers.sinks}
        try:
            replies = self._session.acknowledge(
                checkpoint,
                answers.base,
                snapshots,
                good_for_s=lambda: self._left(answers.good_until),
                phases=answers.phases,
            )
        except CheckpointFailedError as error:  # too large: nothing was sent
            self._decline(checkpoint, shorten(str(error)), answers.phases)
            self._abandon(checkpoint, shorten(str(error)))
            return False
        for reply in replies:
            match reply.verdict:
                case Verdict.ACCEPTED | Verdict.DUPLICATE:
                    pass
                case Verdict.TOO_LATE if reply.decision is Decision.COMPLETED:
                    pass
                case Verdict.TOO_LATE | Verdict.EXPIRED | Verdict.CONFLICT if reply.decision is Decision.ABORTED:
                    self._mailbox.require_undecided(checkpoint)
                    self._abandon(checkpoint, reply.detail or reply.verdict.value)
                    return False
                case Verdict.REFUSED if self._refused(checkpoint, reply.detail):
                    return False
                case _:
                    raise GenerationFailedError(
                        f"The coordinator refused the acknowledgement of checkpoint {checkpoint}: "
                        f"{reply.verdict.value}: {reply.detail}. "
                        "It stays undecided until the next generation aborts it; no record is lost."
                    )
        return True

    def _refused(self, checkpoint: CheckpointId, detail: str) -> bool:
        """Decline a checkpoint for which the coordinator has no room, and abort it once that is decided. False if it
        is not."""
        reason, phases = shorten(detail), self._answers[checkpoint].phases
        answer = self._decline(checkpoint, reason, phases)
        if answer.decision is not Decision.ABORTED:
            return False
        self._abandon(checkpoint, reason)
        return True

    def _decline(self, checkpoint: CheckpointId, reason: str, phases: Phases = MappingProxyType({})) -> Answer:
        """Decline for all participants: one is enough, and every job has a source."""
        return self._session.decline(checkpoint, self._m.source.participant.name, reason, phases=phases)

    def _left(self, good_until: float | None) -> float | None:
        """Return the seconds until a deadline; None when there is none."""
        return None if good_until is None else good_until - self._m.runtime.monotonic()

    def _failed(self, checkpoint: CheckpointId, error: Exception) -> None:
        """Decline and abort before the acknowledgement. The coordinator decides whether the generation continues."""
        self._mailbox.raise_error()
        known = error if isinstance(error, OncewardError) else self._m.source.diagnose(error)
        if self._mailbox.aborted(checkpoint):
            reason = "aborted by the coordinator"
        else:
            plan = self._writer.plan
            reason = str(known) if known is not None else self._diagnosis.describe(checkpoint, plan, error)
            self._mailbox.raise_error()
            self.cause = f"{reason} (checkpoint {checkpoint})"
            self.failed_records = plan.records if plan is not None else 0
            self._decline(checkpoint, shorten(reason), self._turn.phases)
        self._abandon(checkpoint, shorten(reason))
        if known is not None and not isinstance(known, CheckpointFailedError):
            raise known from error
        if not self._mailbox.stopping:
            require_spark(self._m, self._settler, self._m.tasks)

    def _abandon(self, checkpoint: CheckpointId, reason: str) -> None:
        """Abort the open transactions of a checkpoint that was aborted, or was never acknowledged."""
        m = self._m
        began = m.runtime.monotonic()
        self._tasks.end()
        recorded = self._answers.pop(checkpoint, None)
        committables = recorded.committables if recorded is not None else {}
        self._settler.forget(checkpoint)
        if recorded is not None:
            self._outputs.abort(self._settler.author, committables)
        swept = self._outputs.end_leftovers(keep=self._settler.unsettled())
        m.progress.ended(checkpoint)
        transactions = len(swept) + sum(map(len, committables.values()))
        m.journal.log("aborted", checkpoint=checkpoint, transactions=transactions, reason=reason)
        if m.traces is not None:
            m.traces.aborted(checkpoint, reason, seconds=m.runtime.monotonic() - began, transactions=transactions)
        kill_point(KillPoint.DRIVER_AFTER_ABORT)
