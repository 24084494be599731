"""One generation of a job: open, recover, then carry out instructions until it ends (docs/protocol.md#recovery)."""

import contextlib

from onceward.client.session import CoordinatorClient, Session
from onceward.common.backoff import Backoff
from onceward.common.errors import (
    CoordinatorLostError,
    FencedError,
    GenerationEndedError,
    HaltedError,
    OncewardError,
)
from onceward.common.killpoints import KillPoint, kill_point
from onceward.common.printable import logger
from onceward.driver.causes import shorten
from onceward.driver.checkpoint_runner import CheckpointRunner
from onceward.driver.checkpoint_tasks import CheckpointTasks, Turn
from onceward.driver.checkpoint_writer import require_spark
from onceward.driver.mailbox import GenerationFailedError, Mailbox, NothingToReadError
from onceward.driver.members import Members
from onceward.driver.outputs import Claims, Outputs
from onceward.driver.recovery import Recovery
from onceward.driver.replaying import Replayer
from onceward.driver.restarts import FINAL, NextStart, Restarts
from onceward.driver.settler import Settler
from onceward.driver.transaction_age import Ages
from onceward.protocol.answers import Abort, Cancel, Replay, Stop, Trigger
from onceward.protocol.events import CloseReason
from onceward.protocol.generations import newest_first
from onceward.protocol.values import CheckpointId

__all__ = ["GenerationRun"]

_log = logger("onceward.pipeline")

_ENDS_LIMIT = 60.0
"""Seconds to wait at the end of a job until readers can see the last commits."""


class GenerationRun:
    """Runs one generation on the driver's main thread. Owns its session, its mailbox and its settler."""

    def __init__(
        self,
        members: Members,
        client: CoordinatorClient,
        restarts: Restarts,
        *,
        takeover: bool,
        last: bool = False,
    ) -> None:
        """Start nothing yet.

        :param takeover: a former driver that seems alive is gone.
        :param last: no generation follows this one, however it ends: the job was stopped before it began.
        """
        self._m = members
        self._client = client
        self._restarts = restarts
        self._takeover = takeover
        self._last = last
        self._began = members.runtime.monotonic()
        self._mailbox = Mailbox(
            on_complete=self._on_complete,
            on_interrupt=members.tasks.cancel,
            runtime=members.runtime,
        )
        members.source.wakes(self._mailbox.wake)
        self._outputs = Outputs(members.job, members.outputs, members.runtime, members.journal)
        self._ages = Ages(self._outputs.ages, members.journal, members.runtime)
        self._session: Session
        self._settler: Settler
        self._turn: Turn
        self._tasks: CheckpointTasks
        self._runner: CheckpointRunner | None = None
        """Set after recovery."""
        self.claimed = False
        """True once this generation has claimed the job; it touches nothing of the job before."""
        self.settled_records: int | None = None
        """Records that this generation has read and settled; None until it settles a checkpoint."""

    def stop(self) -> None:
        """Leave after settling; callable from a signal handler."""
        self._mailbox.stop()

    def run_dry(self, why: NothingToReadError) -> None:
        """Fail with ``why`` after settling."""
        self._mailbox.run_dry(why)

    def run(self) -> CloseReason:
        """Run until finished or stopped; raises OncewardError for every other end. Closes the session on all paths."""
        kill_point(KillPoint.DRIVER_BEFORE_OPEN)
        seen = self._outputs.read_claims()
        self._open(seen)
        try:
            self._runner = self._recover(seen)
            self._session.start_watch(self._mailbox.deliver)
            reason = self._loop(self._runner)
            self._end_rest()
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
        self._m.progress.completed(self._mailbox.completed)  # also one that had nothing to settle
        self._settler.close(wait=True)
        self._session.close(reason, completed=self._mailbox.completed)
        self._m.journal.log("closed", reason=reason.value)
        return reason

    def _open(self, seen: Claims) -> None:
        m = self._m
        claims = newest_first(filter(None, seen))
        self._session = self._client.open_job(
            m.job,
            (m.source.participant, *self._outputs.participants),
            m.settings,
            next(iter(claims), None),
            *claims[1:],
            driver=m.runtime.token(),
            takeover=self._takeover,
            on_error=self._mailbox.fail,
            stopping=lambda: self._mailbox.stopping,
        )
        m.journal.generation = self._session.generation
        if changed := self._outputs.changes(self._session.grant.former_participants):
            _log.warning("job %s: %s", m.job, changed)
        m.progress.opened(self._session.generation, self._session.grant.store_id)
        if self._session.grant.completed is not None:
            m.progress.completed(self._session.grant.completed.id)
        if m.traces is not None:
            m.traces.opened(self._session.grant.store_id, self._session.generation)
        kill_point(KillPoint.DRIVER_AFTER_OPEN)
        self._settler = Settler(
            session=self._session,
            source=m.source,
            outputs=self._outputs,
            journal=m.journal,
            traces=m.traces,
            on_settled=self._on_settled,
            on_lost=self._mailbox.wake,
            on_wait=self._look_at_ages,
            on_error=self._mailbox.fail,
            runtime=m.runtime,
        )
        self._turn = Turn(
            generation=self._session.generation,
            mailbox=self._mailbox,
            settings=m.settings,
            begin=self._begin,
            sweep=self._sweep,
        )
        self._tasks = m.checkpoint_tasks(m, self._turn)
        self._session.report_oldest(lambda: self._ages.oldest(self._settler.unsettled))
        self._session.report_aborted(self._mailbox.carried_out)
        self._session.report_progress(m.progress.report)

    def _recover(self, seen: Claims) -> CheckpointRunner:
        """Recover the job; return the runner of the checkpoints that follow."""
        recovery = Recovery(self._m, self._outputs, self._session, self._settler, self._mailbox, seen=seen)
        recovery.take_claim()
        self.claimed = True
        recovery.end_transactions()
        # Wait for Spark only after recovery: readers wait until recovery has ended open transactions.
        if not self._mailbox.stopping:
            self._m.tasks.start()
            recovery.restore()
        return CheckpointRunner(
            self._m,
            self._session,
            self._settler,
            self._mailbox,
            self._ages,
            self._outputs,
            self._tasks,
            self._turn,
            positions=recovery.positions,
        )

    def _loop(self, runner: CheckpointRunner) -> CloseReason:
        replayer = Replayer(self._m, self._outputs, self._session, self._settler, self._mailbox)
        while True:
            self._look_at_ages()
            self._settler.keep_claim()
            if not self._settler.unsettled():
                if self._mailbox.dry is not None:
                    raise self._mailbox.dry
                if runner.finished:
                    return CloseReason.FINISHED
                if self._mailbox.cancelled:
                    return CloseReason.CANCELLED
                if self._mailbox.stopping:
                    return CloseReason.STOPPED
            match self._mailbox.next(0.1):
                case Abort() as abort:
                    runner.abort(abort)
                case Trigger() if self._mailbox.dry is not None:
                    pass  # its input has failed; the generation ends as soon as all is settled
                case Trigger() as trigger:
                    runner.run(trigger)
                case Replay() as replay:
                    runner.abandon_later(replay.checkpoint)  # the driver may have missed their aborts
                    replayer.replay(replay)
                case Stop() | Cancel():
                    runner.confirm()
                case None if not self._mailbox.stopping:
                    require_spark(self._m, self._settler, self._m.tasks)

    def _end_rest(self) -> None:
        """End the staying tasks, and abort what they, or late tasks, have begun after the last checkpoint: no driver
        may come to do it."""
        self._tasks.end()
        self._outputs.end_leftovers(keep=self._settler.unsettled())

    def _await_ends(self) -> None:
        """Wait until readers of the output can see every commit. The brokers confirm a commit when they decide it, and
        readers see it a moment later."""
        m = self._m
        give_up, backoff = m.runtime.monotonic() + _ENDS_LIMIT, Backoff(first=0.005, longest=1.0)
        while left := self._outputs.ending():
            if m.runtime.monotonic() >= give_up:
                raise GenerationFailedError(
                    f"Everything is settled, but the ends of {len(left)} transactions are not written to all their "
                    f"partitions after {_ENDS_LIMIT:.0f} s, the first is {left[0]}: readers do not see their records "
                    "yet. Nothing is lost, the brokers still write them; the next generation waits again. Look for "
                    "output partitions without a leader."
                )
            m.runtime.sleep(backoff.next())

    def _begin(self, checkpoint: CheckpointId) -> None:
        self._m.progress.began(checkpoint)
        self._settler.prepare(checkpoint)

    def _sweep(self) -> None:
        if swept := self._outputs.end_leftovers(keep=self._settler.unsettled(), staying=self._tasks.marks):
            self._m.journal.log("swept", transactions=len(swept))

    def _on_complete(self, checkpoint: CheckpointId, amendment: int) -> None:
        self._m.progress.completed(checkpoint)
        self._settler.complete(checkpoint, amendment)

    # -- called by the settler's thread

    def _look_at_ages(self) -> None:
        self._ages.look(self._settler.unsettled)

    def _on_settled(self, checkpoint: CheckpointId, records: int) -> None:
        self.settled_records = (self.settled_records or 0) + records
        self._m.progress.ended(checkpoint)
        self._mailbox.wake()

    # -- failures

    @property
    def failed_records(self) -> int:
        """Records in the plan of the most recent failed checkpoint."""
        return self._runner.failed_records if self._runner is not None else 0

    def next_start(self, error: BaseException) -> NextStart:
        """Return whether and when the next generation follows this one, which has ended with ``error``."""
        final = isinstance(error, (*FINAL, NothingToReadError)) or not isinstance(error, Exception)
        if final or self._last or not self._m.tasks.alive():
            return NextStart(delay=None)
        return self._restarts.after(
            error,
            settled=self.settled_records,
            failed=self.failed_records,
            lasted=self._m.runtime.monotonic() - self._began,
        )

    def describe_end(self, error: BaseException, following: NextStart) -> str:
        """Describe what ended this generation, cause first."""
        text = str(error).strip() or repr(error)
        if isinstance(error, GenerationFailedError) and self._runner is not None and self._runner.cause is not None:
            text = self._runner.cause
        if following.failures > 1:
            remedy = "the job tries again by itself" if following.delay is not None else "start the program again"
            text += (
                f". Failure {following.failures} in a row without getting past this input: correct what the message "
                f"names, then {remedy}"
            )
        return text

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
        self._m.progress.completed(self._mailbox.completed)
        self._m.tasks.cancel()
        self._tasks.leave()
        self._settler.close(wait=not isinstance(error, KeyboardInterrupt))
        following = self.next_start(error)
        reason = shorten(self.describe_end(error, following))
        if isinstance(error, GenerationEndedError):
            self._session.let_go()
        elif not isinstance(error, (FencedError, CoordinatorLostError, KeyboardInterrupt)):
            if (decided := self._mailbox.last_aborted()) is not None:
                self._settler.forget(decided)
            if self.claimed:
                with contextlib.suppress(Exception):  # the next generation aborts what stays open
                    self._outputs.end_leftovers(keep=self._settler.unsettled())
            fenced = self._session.abandon(reason, back_within_s=following.delay, halted=isinstance(error, HaltedError))
            fenced = fenced if following.delay is not None else None
        self._m.journal.log("failed", reason=reason)
        return fenced
