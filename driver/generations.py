"""Run the generations of a job, one after the other, until the job ends."""

from collections.abc import Callable

from onceward.client.session import CoordinatorClient
from onceward.common.errors import JobBusyError, OncewardError
from onceward.common.printable import logger
from onceward.driver.exits import StopFlag
from onceward.driver.generation import GenerationRun
from onceward.driver.mailbox import GenerationFailedError, NothingToReadError
from onceward.driver.members import Members
from onceward.driver.restarts import FINAL, Restart, Restarts
from onceward.protocol.events import CloseReason

__all__ = ["Generations"]

_log = logger("onceward.pipeline")


class Generations:
    """The generations of one job in this process."""

    def __init__(
        self,
        members: Members,
        client: CoordinatorClient,
        restart: Restart,
        stopping: StopFlag,
        *,
        takeover: bool,
        await_input: Callable[[], bool] = lambda: False,
    ) -> None:
        """``stopping``: set when the job is to leave. ``takeover``: a former driver that seems alive is gone.
        ``await_input``: waits for input after :meth:`run_dry`; False when there will be none."""
        self._m = members
        self._client = client
        self._restarts = Restarts(restart)
        self._stopping = stopping
        self._takeover = takeover
        self._await_input = await_input
        self._running: GenerationRun | None = None
        self.dry = False
        """Whether the job has left and waits for input."""

    def stop(self) -> None:
        """Leave after settling the running checkpoint; callable from any thread and from signal handlers."""
        self._stopping.set()
        if self._running is not None:
            self._running.stop()

    def run_dry(self, why: NothingToReadError) -> None:
        """Leave the job with ``why`` after settling, until there is input again."""
        if self._running is not None:
            self._running.run_dry(why)

    def run(self) -> CloseReason:
        """Run until the job ends. A failed generation is followed by the next one; final errors are raised."""
        try:
            reason = self._run()
        except BaseException as error:
            self._m.progress.left(type(error).__name__)
            raise
        self._m.progress.left(reason.value)
        return reason

    def _run(self) -> CloseReason:
        failed = False
        while True:
            run = GenerationRun(
                self._m,
                self._client,
                self._restarts,
                takeover=self._takeover,
                last=self._stopping.is_set(),
            )
            self._running = run
            if self._stopping.is_set():  # looked at again: from here on, stop() reaches the run
                run.stop()
            try:
                return run.run()
            except FINAL as error:
                if isinstance(error, JobBusyError) and self._stopping.is_set() and not failed:
                    return CloseReason.STOPPED  # the job had not begun
                raise
            except NothingToReadError as why:
                _log.error("job %s is left until there is input again: %s", self._m.job, why)
                self.dry = True
                if not self._await_input():
                    return CloseReason.STOPPED
                self.dry = False
            except Exception as error:
                failed = True
                following = run.next_start(error)
                if following.delay is None:
                    if isinstance(error, GenerationFailedError):
                        raise GenerationFailedError(run.describe_end(error, following)) from error
                    raise
                if not isinstance(error, OncewardError):
                    _log.exception("generation failed unexpectedly")
                _log.warning("restarting in %.1f s: %s", following.delay, run.describe_end(error, following))
                # if stopped meanwhile, one more generation settles what is decided, without starting Spark
                self._stopping.wait(following.delay)
