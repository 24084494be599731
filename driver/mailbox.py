"""Passes instructions, signals and errors from other threads to the driver's main thread."""

from collections.abc import Callable
from typing import assert_never

from onceward.common.errors import FencedError, GenerationEndedError, HaltedError, OncewardError
from onceward.driver.runtime import THREADS, Runtime
from onceward.protocol import answers
from onceward.protocol.values import NO_CHECKPOINT, CheckpointId, ParticipantName

__all__ = ["GenerationFailedError", "Mailbox", "NothingToReadError"]


class GenerationFailedError(OncewardError):
    """This generation cannot go on; the next one can."""


class NothingToReadError(OncewardError):
    """What gives the job its input has failed. The next generation begins when there is input again."""


class Mailbox:
    """Level-triggered: keeps only the newest request of each kind, a replay for each sink, so repeated and reordered
    deliveries do no harm."""

    def __init__(
        self,
        *,
        on_complete: Callable[[CheckpointId, int], None],
        on_interrupt: Callable[[], None],
        runtime: Runtime = THREADS,
    ) -> None:
        """``on_complete`` hands a checkpoint and its amendment to the settler; ``on_interrupt`` cancels the Spark
        job."""
        self._changed = runtime.condition()
        self._on_complete = on_complete
        self._on_interrupt = on_interrupt
        self._runtime = runtime
        self._trigger: answers.Trigger | None = None
        self._triggered_at = 0.0
        self.kept_waiting = 0.0
        """Seconds that the last trigger waited for the main thread, which was busy."""
        self._abort: answers.Abort | None = None
        self._handled_abort = NO_CHECKPOINT
        self._carried_out = NO_CHECKPOINT
        self._running: CheckpointId | None = None
        self._hurried = NO_CHECKPOINT
        self._replays: dict[ParticipantName, answers.Replay] = {}
        self._completed = NO_CHECKPOINT
        self._ending: answers.Stop | answers.Cancel | None = None
        self._stop = False
        self._cancelled = False
        self._dry: NothingToReadError | None = None
        self._error: OncewardError | None = None

    def advance(self, checkpoint: CheckpointId) -> None:
        """Record ``checkpoint`` as the newest completed checkpoint that the coordinator has named.

        It can only grow: raises HaltedError when the coordinator has named a newer one before.
        """
        if checkpoint < self._completed:
            raise _older_copy(
                f"names {checkpoint} as the newest completed checkpoint, and named {self._completed} before"
            )
        self._completed = checkpoint

    def require_undecided(self, checkpoint: CheckpointId) -> None:
        """Raise HaltedError if the coordinator, which has aborted ``checkpoint``, named it as completed before."""
        if checkpoint <= self._completed:
            raise _older_copy(f"has aborted checkpoint {checkpoint}, and named it as completed before")

    @property
    def completed(self) -> CheckpointId:
        """The newest completed checkpoint that the coordinator has named."""
        return self._completed

    def deliver(self, instruction: answers.Instruction) -> None:
        """Handle one instruction; called by the watch thread."""
        try:
            self._require_newest(instruction)
        except HaltedError as error:
            self.fail(error)
            return
        match instruction:
            case answers.Complete(checkpoint=checkpoint, amendment=amendment):
                self._on_complete(checkpoint, amendment)
            case answers.Trigger():
                with self._changed:
                    if instruction.at_once:
                        self._hurried = instruction.checkpoint
                    if instruction.checkpoint != self._running:
                        if self._trigger is None or self._trigger.checkpoint != instruction.checkpoint:
                            self._triggered_at = self._runtime.monotonic()
                        self._trigger = instruction
                    self._changed.notify_all()
            case answers.Replay():
                with self._changed:
                    self._replays[instruction.participant] = instruction
                    self._changed.notify_all()
            case answers.Abort(checkpoint=checkpoint):
                with self._changed:
                    interrupt = self._running == checkpoint
                    if checkpoint > self._handled_abort:
                        self._abort = instruction
                    if self._trigger is not None and self._trigger.checkpoint <= checkpoint:
                        self._trigger = None
                    self._changed.notify_all()
                if interrupt:
                    self._on_interrupt()
            case answers.Stop() | answers.Cancel():
                with self._changed:
                    self._ending = instruction
                    self._cancelled = self._cancelled or isinstance(instruction, answers.Cancel)
                self.stop()
            case answers.Fail(reason=reason):
                self.fail(GenerationFailedError(reason))
            case answers.Halt(reason=reason):
                self.fail(HaltedError(reason))
            case _:
                assert_never(instruction)

    def _require_newest(self, instruction: answers.Instruction) -> None:
        match instruction:
            case answers.Trigger() | answers.Abort():
                self.advance(instruction.base)
            case answers.Complete() | answers.Replay():
                self.advance(instruction.checkpoint)
            case _:
                pass

    def stop(self) -> None:
        """Leave after the running checkpoint is settled. Callable from a signal handler's thread."""
        with self._changed:
            self._stop = True
            self._changed.notify_all()

    def fail(self, error: OncewardError) -> None:
        """Leave now. The first error wins, except that the end of the generation replaces any error but a halt."""
        with self._changed:
            over = isinstance(error, (FencedError, GenerationEndedError))
            if self._error is None or (over and not isinstance(self._error, HaltedError)):
                self._error = error
            running = self._running is not None
            self._changed.notify_all()
        if running:
            self._on_interrupt()

    def run_dry(self, why: NothingToReadError) -> None:
        """Leave with ``why`` when everything is settled."""
        with self._changed:
            self._dry = why
            self._changed.notify_all()

    @property
    def dry(self) -> NothingToReadError | None:
        return self._dry

    @property
    def stopping(self) -> bool:
        return self._stop

    @property
    def cancelled(self) -> bool:
        """True when a person has cancelled the job."""
        return self._cancelled

    def hurried(self, checkpoint: CheckpointId) -> bool:
        """True when a person waits for ``checkpoint``: it must not wait for data."""
        return self._hurried == checkpoint

    def raise_error(self) -> None:
        """Raise the error that another thread reported, if any."""
        if self._error is not None:
            raise self._error

    def aborted(self, checkpoint: CheckpointId) -> bool:
        """True when ``checkpoint`` is known to be aborted."""
        with self._changed:
            return self._abort is not None and self._abort.checkpoint >= checkpoint

    def against(self, checkpoint: CheckpointId) -> tuple[answers.Abort | answers.Trigger, ...]:
        """Return what waits to be carried out and says that ``checkpoint`` has come to nothing."""
        abort, trigger = self._abort, self._trigger
        found: list[answers.Abort | answers.Trigger] = []
        if abort is not None and abort.base < checkpoint <= abort.checkpoint:
            found.append(abort)
        if trigger is not None and trigger.base < checkpoint < trigger.checkpoint:
            found.append(trigger)
        return tuple(found)

    def refute(self, heard: tuple[answers.Abort | answers.Trigger, ...]) -> None:
        """Drop what the coordinator knows nothing of."""
        with self._changed:
            self._abort = None if any(one is self._abort for one in heard) else self._abort
            self._trigger = None if any(one is self._trigger for one in heard) else self._trigger

    def last_aborted(self) -> CheckpointId | None:
        """Return the newest checkpoint that is known to be aborted."""
        with self._changed:
            return self._abort.checkpoint if self._abort is not None else None

    def carried_out(self) -> CheckpointId:
        """Return the newest checkpoint whose abort the main thread has carried out."""
        return self._carried_out

    def next(self, timeout: float) -> answers.Instruction | None:
        """Return the next instruction, or None after ``timeout`` seconds. Raises an error that another thread
        reported."""
        asked = self._runtime.monotonic()
        with self._changed:
            self._carried_out = self._handled_abort  # the main thread asks for the next after finishing the last
            self._changed.wait_for(self._has_work, timeout)
            self.raise_error()
            if self._abort is not None and self._abort.checkpoint > self._handled_abort:
                self._handled_abort = self._abort.checkpoint
                return self._abort
            if self._replays:
                return self._replays.pop(next(iter(self._replays)))
            if self._trigger is None and self._ending is not None:
                ending, self._ending = self._ending, None
                return ending
            trigger, self._trigger = self._trigger, None
            self.kept_waiting = max(0.0, asked - self._triggered_at)
            return trigger

    def wait(self, done: Callable[[], bool], timeout: float | None) -> bool:
        """Wait until ``done()``, without limit if ``timeout`` is None. Raises an error that another thread reported."""
        with self._changed:
            result = self._changed.wait_for(lambda: self._error is not None or done(), timeout)
            self.raise_error()
            return result

    def wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def running(self, checkpoint: CheckpointId | None) -> None:
        """Record which checkpoint's Spark job may be interrupted."""
        with self._changed:
            self._running = checkpoint

    def _has_work(self) -> bool:
        return (
            self._error is not None
            or self._trigger is not None
            or self._ending is not None
            or bool(self._replays)
            or (self._abort is not None and self._abort.checkpoint > self._handled_abort)
        )


def _older_copy(what: str) -> HaltedError:
    return HaltedError(
        f"The coordinator {what}: its store was replaced by an older copy. This driver reads and writes nothing more; "
        "what is decided stays open for the newest store. Stop the coordinator and put the newest store back."
    )
