"""One generation of a job: open, recover, then run checkpoints until it ends (docs/protocol.md#recovery)."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from onceward.coordinator.backoff import Backoff
from onceward.coordinator.client.session import CoordinatorClient, Session
from onceward.coordinator.errors import (
    CheckpointFailedError,
    ConfigurationError,
    CoordinatorLostError,
    FencedError,
    GenerationEndedError,
    HaltedError,
    OncewardError,
)
from onceward.coordinator.killpoints import KillPoint, kill_point
from onceward.coordinator.pipeline.causes import cause_of
from onceward.coordinator.pipeline.interfaces import Committer, Plan, Sink, Source
from onceward.coordinator.pipeline.journal import Journal
from onceward.coordinator.pipeline.mailbox import GenerationFailedError, Mailbox
from onceward.coordinator.pipeline.narrowing import Narrowing
from onceward.coordinator.pipeline.origins import origins_of
from onceward.coordinator.pipeline.progress import Progress
from onceward.coordinator.pipeline.replaying import Replayer
from onceward.coordinator.pipeline.restarts import Return
from onceward.coordinator.pipeline.runtime import THREADS, Runtime
from onceward.coordinator.pipeline.settler import Settler
from onceward.coordinator.pipeline.spark_tasks import Tasks
from onceward.coordinator.pipeline.timings import of_checkpoint
from onceward.coordinator.pipeline.transaction_age import Ages, good_for
from onceward.coordinator.printable import logger
from onceward.coordinator.protocol.answers import Abort, Decision, Replay, Trigger, Verdict
from onceward.coordinator.protocol.events import CloseReason
from onceward.coordinator.protocol.settings import CheckpointSettings
from onceward.coordinator.protocol.values import (
    NO_CHECKPOINT,
    CheckpointId,
    Claim,
    Committable,
    CompletedCheckpoint,
    Document,
    JobName,
    JsonObject,
    Snapshot,
)

_log = logger("onceward.pipeline")

_IDLE_POLL = 0.05
"""Seconds between polls for new data while a triggered checkpoint waits for some."""
_IDLE_WAIT = 1.0
"""Seconds after which a checkpoint without new data is acknowledged unchanged, or a quarter of the checkpoint timeout
if that is less."""
_SETTLE_LIMIT = 60.0
"""Seconds to finish decided commits after Spark is lost; the next generation commits the rest."""
_ENDS_LIMIT = 60.0
"""Seconds to wait at the end of a job until readers can see the last commits."""
_NARROWING = 30.0
"""Seconds for finding the input at fault, or a quarter of the checkpoint timeout if that is less."""
_SWEEP_INTERVAL = 30.0
"""Seconds between sweeps of an idle job; a busy job sweeps in every checkpoint."""


@dataclass(frozen=True, kw_only=True)
class Members:
    """The parts of a job on the driver."""

    job: JobName
    source: Source
    sink: Sink
    committer: Committer
    tasks: Tasks
    settings: CheckpointSettings
    journal: Journal
    progress: Progress
    runtime: Runtime = THREADS
    narrowing: Narrowing = field(default_factory=Narrowing)


class GenerationRun:
    """Runs one generation on the driver's main thread."""

    def __init__(
        self,
        members: Members,
        client: CoordinatorClient,
        *,
        takeover: bool,
        adopt: bool,
        comes_back: "Callable[[BaseException, GenerationRun], Return]" = lambda _error, _run: Return(delay=None),
    ) -> None:
        """``comes_back`` decides whether and when the next generation follows this one."""
        self._m = members
        self._client = client
        self._takeover = takeover
        self._adopt = adopt
        self._comes_back = comes_back
        self._mailbox = Mailbox(on_complete=self._complete, on_interrupt=members.tasks.cancel, runtime=members.runtime)
        self._session: Session
        self._settler: Settler
        self._replayer: Replayer
        self._positions: dict[CheckpointId, Document] = {}
        self._answers: dict[CheckpointId, tuple[CheckpointId, Snapshot, Snapshot]] = {}
        self._good_until: dict[CheckpointId, float] = {}
        """Deadline for committing each acknowledged checkpoint, on the runtime's monotonic clock."""
        self._last_run = NO_CHECKPOINT
        self._last_sweep = members.runtime.monotonic()
        self._finished = False
        self._ages = Ages(members.committer, members.journal, members.runtime)
        self.opened = False
        """True once the coordinator has granted this generation."""
        self.settled_any = False
        """True once this generation has settled a checkpoint."""
        self.settled_records = 0
        self.failed_records = 0
        """Records in the plan of the most recent failed checkpoint."""
        self.claimed = False
        """True once this generation has claimed the job; it touches nothing of the job before."""
        self._seen: Claim | None = None
        self._planned: dict[CheckpointId, Plan] = {}
        self._cause: str | None = None
        """Cause of the last failed checkpoint; cleared when a checkpoint succeeds."""

    def stop(self) -> None:
        """Leave after settling; callable from a signal handler."""
        self._mailbox.stop()

    def run(self) -> CloseReason:
        """Run until finished or stopped; raises OncewardError for every other end. Closes the session on all paths."""
        self._open()
        try:
            self._recover()
            # Start Spark only after recovery: it takes seconds, and readers wait until recovery has ended open
            # transactions.
            if not self._mailbox.stopping:
                self._m.tasks.start()
                self._restore()
            self._session.start_watch(self._mailbox.deliver)
            reason = self._loop()
            self._await_ends()
        except FencedError as error:
            word = self._asked_about(error)
            self._leave_failed(word)
            raise word from error
        except BaseException as error:
            fenced = self._leave_failed(error)
            if fenced is not None:
                raise fenced from error
            raise
        kill_point(KillPoint.DRIVER_BEFORE_CLOSE)
        self._settler.close(wait=True)
        self._session.close(reason, "")
        self._m.journal.tell("closed", reason=reason.value)
        return reason

    # -- opening and recovery

    def _open(self) -> None:
        kill_point(KillPoint.DRIVER_BEFORE_OPEN)
        m = self._m
        self._seen = m.sink.read_claim()
        self._session = self._client.open_job(
            m.job,
            (m.source.participant, m.sink.participant),
            m.settings,
            self._seen,
            driver=m.runtime.token(),
            takeover=self._takeover,
            adopt=self._adopt,
            on_error=self._mailbox.fail,
            stopping=lambda: self._mailbox.stopping,
        )
        self.opened = True
        m.journal.generation = self._session.generation
        kill_point(KillPoint.DRIVER_AFTER_OPEN)
        self._settler = Settler(
            session=self._session,
            source=m.source,
            sink=m.sink,
            committer=m.committer,
            journal=m.journal,
            on_settled=self._on_settled,
            on_lost=self._mailbox.wake,
            on_wait=self._look_at_ages,
            on_error=self._mailbox.fail,
            runtime=m.runtime,
        )
        self._session.tell_oldest(lambda: self._ages.oldest(self._settler.unsettled))
        self._session.tell_aborted(self._mailbox.carried_out)
        self._replayer = Replayer(m, self._session, self._settler, self._mailbox)

    def _recover(self) -> None:
        """Abort undecided transactions, commit the completed checkpoint, restore positions; in this order."""
        m, completed = self._m, self._session.grant.completed
        to_commit: tuple[Committable, ...] = ()
        if completed is not None and not completed.settled:
            to_commit = completed.snapshots[m.sink.participant.name].committables
            # Register before anything can fail: a failing generation sweeps all that its settler does not hold.
            self._settler.expect(completed.id, to_commit, None)
        m.sink.begin_generation(self._session.generation)
        if completed is not None:
            self._mailbox.advance(completed.id)
            self._positions[completed.id] = self._restored_positions(completed)
        claim = Claim(
            store_id=self._session.grant.store_id,
            generation=self._session.generation,
            completed=completed.id if completed is not None else NO_CHECKPOINT,
            holder=self._session.driver,
        )
        m.sink.take_claim(claim, self._seen)
        self.claimed = True
        kill_point(KillPoint.DRIVER_AFTER_CLAIM)
        aborted = m.committer.sweep(m.job, keep=to_commit)
        kill_point(KillPoint.DRIVER_AFTER_RECOVERY_ABORT)
        if completed is not None and to_commit:
            self._settle_first(completed, to_commit)
        kill_point(KillPoint.DRIVER_AFTER_RECOVERY_COMMIT)
        m.journal.tell(
            "recovered",
            checkpoint=completed.id if completed else 0,
            resumed=len(to_commit),
            aborted=len(aborted),
        )

    def _settle_first(self, completed: CompletedCheckpoint, to_commit: tuple[Committable, ...]) -> None:
        """Commit before doing anything else. If slots are lost, the coordinator's first instruction concerns them."""
        amendment = completed.amendment
        self._settler.expect(completed.id, to_commit, self._positions[completed.id], amendment=amendment)
        if not self._session.grant.lost:
            self._settler.complete(completed.id, amendment)
            self._mailbox.wait(lambda: completed.id in (self._settler.settled, self._settler.lost), None)

    def _restore(self) -> None:
        if self._session.grant.new_run:
            self._m.source.begin_new_run()
        for positions in self._positions.values():
            self._m.source.restore(positions)

    def _restored_positions(self, completed: CompletedCheckpoint) -> Document:
        name = self._m.source.participant.name
        snapshot = completed.snapshots.get(name)
        if snapshot is None or snapshot.positions is None:
            known = [other for other, found in completed.snapshots.items() if found.positions is not None]
            raise ConfigurationError(
                f"Checkpoint {completed.id} of job {self._m.job} has positions of {', '.join(known)}, none of {name}. "
                f"Starting over would write records twice, so nothing was read. Call the source {known[0]} again."
            )
        return snapshot.positions

    # -- the loop

    def _loop(self) -> CloseReason:
        while True:
            self._look_at_ages()
            if not self._settler.unsettled():
                if self._finished:
                    return CloseReason.FINISHED
                if self._mailbox.cancelled:
                    return CloseReason.CANCELLED
                if self._mailbox.stopping:
                    return CloseReason.STOPPED
            match self._mailbox.next(0.1):
                case Abort() as abort:
                    # only the last abort is delivered: the driver may have missed earlier ones since the base
                    unheard = [c for c in self._answers if abort.base < c < abort.checkpoint]
                    for checkpoint in (*unheard, abort.checkpoint):
                        self._abandon(checkpoint, abort.reason.value)
                case Trigger() as trigger:
                    # a stopping driver starts no checkpoint, but a new coordinator may need its answers again
                    if not self._mailbox.stopping or trigger.checkpoint in self._answers:
                        self._checkpoint(trigger)
                case Replay() as replay:
                    # the driver may have missed the aborts of later checkpoints
                    for later in [c for c in self._answers if c > replay.checkpoint]:
                        self._abandon(later, f"lost slots of checkpoint {replay.checkpoint} are written again first")
                    self._replayer.replay(replay)
                case None if not self._mailbox.stopping:
                    self._require_spark()

    def _checkpoint(self, trigger: Trigger) -> None:
        checkpoint, base = trigger.checkpoint, trigger.base
        if checkpoint <= self._last_run:  # triggered again: do not run it again, only resend its answers
            if checkpoint in self._answers:
                self._send(checkpoint)
            return
        self._last_run = checkpoint
        self._forget_undone(base)
        kill_point(KillPoint.DRIVER_AFTER_TRIGGER)
        self._mailbox.running(checkpoint)
        try:
            answers = self._run(checkpoint, base)
        except Exception as error:  # noqa: BLE001 - sorted by _failed
            self._failed(checkpoint, error)
            return
        finally:
            self._mailbox.running(None)
        self._cause = None
        self._answers[checkpoint] = (base, *answers)
        self._settler.expect(checkpoint, answers[1].committables, answers[0].positions)
        self._settler.prepare(checkpoint)
        self._send(checkpoint)

    def _forget_undone(self, base: CheckpointId) -> None:
        """Discard answers that came to nothing: ``base`` is completed, and no later checkpoint is."""
        for undone in [c for c in self._answers if c > base]:
            if self._answers[undone][2].committables:
                self._abandon(undone, "the next checkpoint builds on an earlier one")
            else:
                del self._answers[undone]
        self._answers = {c: answers for c, answers in self._answers.items() if c == base}
        self._good_until = {c: until for c, until in self._good_until.items() if c in self._answers}
        if base not in self._positions and base != NO_CHECKPOINT:
            raise GenerationFailedError(
                f"The coordinator names checkpoint {base} as base, whose positions this driver does not know. "
                "Nothing was read; the next generation gets them from the store."
            )
        self._positions = {c: positions for c, positions in self._positions.items() if c == base}
        if base in self._answers and self._answers[base][1].records:
            self._settler.passed(base)

    def _run(self, checkpoint: CheckpointId, base: CheckpointId) -> tuple[Snapshot, Snapshot]:
        """Do the checkpoint's work; returns the snapshots of source and sink."""
        m = self._m
        self._require_spark()
        if base == NO_CHECKPOINT:
            self._positions[checkpoint] = start = m.source.resolve()
            return Snapshot(positions=start, next_at_once=True), Snapshot()
        positions = self._positions[base]
        plan, planning = self._plan(checkpoint, positions)
        kill_point(KillPoint.DRIVER_AFTER_PLAN)
        self._positions[checkpoint] = plan.positions
        if plan.records == 0:
            self._sweep_now_and_then()
            unchanged = plan.positions == positions
            self._finished = plan.finished and unchanged
            return Snapshot(positions=plan.positions, unchanged=unchanged), Snapshot(unchanged=unchanged)
        self._mailbox.raise_error()
        if self._mailbox.aborted(checkpoint):
            raise CheckpointFailedError(f"Checkpoint {checkpoint} was aborted before its Spark job began.")
        self._planned = {c: known for c, known in self._planned.items() if c >= base}
        self._planned[checkpoint] = plan
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
        if lasting is not None:
            self._good_until[checkpoint] = began + lasting
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
        return (
            Snapshot(
                positions=m.source.snapshot(plan),
                records=plan.records,
                # start the next checkpoint at once when there is a backlog, or when the job has nothing left to do
                next_at_once=plan.cut_for_time or plan.finished,
            ),
            Snapshot(committables=committables, records=records, bytes=size),
        )

    def _sweep_now_and_then(self) -> None:
        """Sweep an idle job at intervals: a late zombie of an earlier generation must not hold readers back."""
        if self._m.runtime.monotonic() - self._last_sweep >= _SWEEP_INTERVAL:
            swept = self._m.committer.sweep(self._m.job, keep=self._settler.unsettled())
            self._last_sweep = self._m.runtime.monotonic()
            if swept:
                self._m.journal.tell("swept", transactions=len(swept))

    def _plan(self, checkpoint: CheckpointId, positions: Document) -> tuple[Plan, float]:
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

    def _send(self, checkpoint: CheckpointId) -> None:
        """Acknowledge for source and sink. From the first call on, only a decision may end the transactions."""
        base, source, sink = self._answers[checkpoint]
        m = self._m
        snapshots = {m.source.participant.name: source, m.sink.participant.name: sink}
        try:
            answers = self._session.acknowledge(checkpoint, base, snapshots, good_for=lambda: self._left(checkpoint))
        except CheckpointFailedError as error:  # too large: nothing was sent
            self._session.decline(checkpoint, m.sink.participant.name, _shorten(str(error)))
            self._abandon(checkpoint, _shorten(str(error)))
            return
        for answer in answers:
            match answer.verdict:
                case Verdict.ACCEPTED | Verdict.DUPLICATE:
                    pass
                case Verdict.TOO_LATE if answer.decision is Decision.COMPLETED:
                    pass
                case Verdict.TOO_LATE | Verdict.EXPIRED | Verdict.CONFLICT if answer.decision is Decision.ABORTED:
                    self._abandon(checkpoint, answer.detail or answer.verdict.value)
                    return
                case _:
                    raise GenerationFailedError(
                        f"The coordinator refused the acknowledgement of checkpoint {checkpoint}: "
                        f"{answer.verdict.value}: {answer.detail}. "
                        "It stays undecided until the next generation aborts it; no record is lost."
                    )
        kill_point(KillPoint.DRIVER_AFTER_ACKNOWLEDGE)

    def _left(self, checkpoint: CheckpointId) -> float | None:
        """Return the seconds in which ``checkpoint`` can still be committed; None when it has no deadline."""
        good_until = self._good_until.get(checkpoint)
        return None if good_until is None else good_until - self._m.runtime.monotonic()

    # -- failures

    def _failed(self, checkpoint: CheckpointId, error: Exception) -> None:
        """Decline and abort before the acknowledgement. The coordinator decides whether the generation goes on."""
        self._mailbox.raise_error()
        known = error if isinstance(error, OncewardError) else self._m.source.diagnose(error)
        if self._mailbox.aborted(checkpoint):
            reason = "aborted by the coordinator"
        else:
            reason = str(known) if known is not None else self._why(checkpoint, error)
            self._mailbox.raise_error()
            self._cause = f"{reason} (checkpoint {checkpoint})"
            plan = self._planned.get(checkpoint)
            self.failed_records = plan.records if plan is not None else 0
            self._session.decline(checkpoint, self._m.sink.participant.name, _shorten(reason))
        self._abandon(checkpoint, _shorten(reason))
        if known is not None and not isinstance(known, CheckpointFailedError):
            raise known from error
        if not self._mailbox.stopping:
            self._require_spark()

    def _why(self, checkpoint: CheckpointId, error: Exception) -> str:
        """Return the cause of the failure and the input that it concerns, for the person who must act."""
        m, plan = self._m, self._planned.get(checkpoint)
        _log.info("checkpoint %d failed: %s", checkpoint, error)
        cause = cause_of(error)
        explained = m.sink.explain(cause.text)
        if plan is None or not (explained or cause.by_record):
            return cause.text
        found = self._narrow(checkpoint, plan) if m.sink.hides_until_decided() else plan.splits
        return (
            f"{explained or cause.text}. Input: {m.source.describe(found)}. Nothing of the checkpoint becomes visible, "
            "and its records stay unread until they can be written"
        )

    def _narrow(self, checkpoint: CheckpointId, plan: Plan) -> Sequence[JsonObject]:
        """Return the smallest part of the plan that fails on its own. The checkpoint's abort covers what is written
        here."""
        m = self._m
        give_up = m.runtime.monotonic() + min(_NARROWING, m.settings.seconds("timeout") / 4)

        def fails(part: Sequence[JsonObject]) -> bool:
            try:
                some = replace(plan, splits=tuple(part), can_coalesce=False)
                m.tasks.run(generation=self._session.generation, checkpoint=checkpoint, plan=some)
            except Exception as error:  # noqa: BLE001 - what a transform raises
                self._mailbox.raise_error()
                return not self._mailbox.aborted(checkpoint) and m.tasks.alive() and self._by_record(error)
            return False

        def may_go_on() -> bool:
            return (
                m.runtime.monotonic() < give_up and not self._mailbox.aborted(checkpoint) and not self._mailbox.stopping
            )

        return m.narrowing.find(plan.splits, halves=m.source.halves, fails=fails, may_go_on=may_go_on)

    def _by_record(self, error: Exception) -> bool:
        cause = cause_of(error)
        return cause.by_record or self._m.sink.explain(cause.text) is not None

    def told(self, error: BaseException, back: Return) -> str:
        """Describe what ended this generation, cause first."""
        text = str(error).strip() or repr(error)
        if self._cause is not None and isinstance(error, GenerationFailedError):
            text = self._cause
        if back.failures > 1:
            then = "the job tries again by itself" if back.delay is not None else "start the program again"
            text += (
                f". Failure {back.failures} in a row without getting past this input: correct what the message names, "
                f"then {then}"
            )
        return text

    def _abandon(self, checkpoint: CheckpointId, reason: str) -> None:
        """Abort the open transactions of a checkpoint that was aborted, or was never acknowledged."""
        m = self._m
        recorded = self._answers.pop(checkpoint, None)
        self._settler.forget(checkpoint)
        if recorded is not None:
            m.committer.abort(recorded[2].committables)
        swept = m.committer.sweep(m.job, keep=self._settler.unsettled())
        m.progress.ended(checkpoint)
        transactions = len(swept) + (len(recorded[2].committables) if recorded is not None else 0)
        m.journal.tell("aborted", checkpoint=checkpoint, transactions=transactions, reason=reason)
        kill_point(KillPoint.DRIVER_AFTER_ABORT)

    def _asked_about(self, error: FencedError) -> OncewardError:
        """Return the error to leave with when the clusters show a newer owner. That may be the coordinator, which
        settles for a driver that it considers dead; it knows whether another driver owns the job."""
        try:
            self._session.renew()
        except OncewardError as word:
            return word
        return error

    def _leave_failed(self, error: BaseException) -> FencedError | None:
        """Release everything. The next generation settles what is decided and aborts the rest.

        Returns the error that keeps this driver from coming back, if it otherwise would; else None.
        """
        fenced = None
        self._m.tasks.cancel()
        self._settler.close(wait=not isinstance(error, KeyboardInterrupt))
        back = self._comes_back(error, self)
        reason = _shorten(self.told(error, back))
        if isinstance(error, GenerationEndedError):
            self._session.let_go()
        elif not isinstance(error, (FencedError, CoordinatorLostError, KeyboardInterrupt)):
            if (decided := self._mailbox.last_aborted()) is not None:
                self._settler.forget(decided)
            if self.claimed:
                with contextlib.suppress(Exception):  # the next generation aborts what stays open
                    self._m.committer.sweep(self._m.job, keep=self._settler.unsettled())
            fenced = self._session.abandon(reason, back_within=back.delay, halted=isinstance(error, HaltedError))
            fenced = fenced if back.delay is not None else None
        self._m.journal.tell("failed", reason=reason)
        return fenced

    def _require_spark(self) -> None:
        if not self._m.tasks.alive():
            give_up = self._m.runtime.monotonic() + _SETTLE_LIMIT
            while self._settler.unsettled() and self._m.runtime.monotonic() < give_up:
                self._m.runtime.sleep(0.05)
            raise OncewardError(
                "Spark's JVM is gone. Completed checkpoints are committed now or at the next start; the running "
                "checkpoint is aborted by the next start, its records are read again. Start the program again."
            )

    def _await_ends(self) -> None:
        """Wait until readers of the output can see every commit. The brokers confirm a commit when they decide it, and
        readers see it a moment later."""
        m = self._m
        give_up, backoff = m.runtime.monotonic() + _ENDS_LIMIT, Backoff(first=0.005, longest=1.0)
        while left := m.committer.ending(m.job):
            if m.runtime.monotonic() >= give_up:
                raise GenerationFailedError(
                    f"Everything is settled, but the ends of {len(left)} transactions are not written to all their "
                    f"partitions after {_ENDS_LIMIT:.0f} s, the first is {left[0]}: readers do not see their records "
                    "yet. Nothing is lost, the brokers go on writing them; the next generation waits again. Look for "
                    "output partitions without a leader."
                )
            m.runtime.sleep(backoff.next())

    # -- called by other threads

    def _look_at_ages(self) -> None:
        self._ages.look(self._settler.unsettled)

    def _complete(self, checkpoint: CheckpointId, amendment: int) -> None:
        self._settler.complete(checkpoint, amendment)

    def _on_settled(self, checkpoint: CheckpointId) -> None:
        self.settled_any = True
        plan = self._planned.get(checkpoint)
        self.settled_records += plan.records if plan is not None else 0
        self._m.progress.ended(checkpoint)
        self._mailbox.wake()


def _shorten(text: str, limit: int = 6000) -> str:
    """Shorten ``text`` to at most ``limit`` characters: Spark's errors carry whole stack traces, which the
    coordinator's history does not need."""
    return text if len(text) <= limit else text[: limit - 20] + " … (shortened)"
