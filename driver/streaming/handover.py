"""Where Spark's stream thread, which has the batch, and the generation's threads, which decide about it, meet."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NoReturn

from onceward.common.errors import CheckpointFailedError, HaltedError, OncewardError
from onceward.connectors.interfaces import ReplayRefusedError
from onceward.connectors.tasks import CheckpointTask, Digest
from onceward.driver.outputs import Votes
from onceward.driver.streaming.batches import Batch, Found

__all__ = ["Handover", "StreamEndedError", "Work"]

_LOOK_S = 0.5
"""Seconds between looks whether the query still runs."""


class StreamEndedError(OncewardError):
    """The query or the job was stopped before the batch was settled. The next start of the query runs it again."""


@dataclass(kw_only=True, eq=False)
class Work:
    """One run of a batch's DataFrame that a checkpoint waits for."""

    task: CheckpointTask
    batch: Batch
    replay: bool
    """It writes lost slots again. It may wait until Spark runs the batch: after a restart, the query starts later."""
    taken: bool = False
    result: Votes | Exception | None = field(default=None)


class Handover:
    """Thread-safe. Spark's thread offers one batch at a time, and runs what the generation wants of it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._offer: Found | None = None
        self._offers = 0
        self._on_offer: Callable[[], None] = lambda: None
        self._work: Work | None = None
        self._settled: Batch | None = None
        self._newest: Batch | None = None
        self._settled_digest = ""
        self._digest = ""
        self._refusal: HaltedError | None = None
        self._recovered = False
        self._left = False
        self._ended: BaseException | None = None

    # -- Spark's thread

    @contextlib.contextmanager
    def offering(self, found: Found) -> Iterator[None]:
        """Offer a batch to the generation's next checkpoint, until it is settled or its query stops."""
        with self._changed:
            self._offer = found
            self._offers += 1
            self._changed.notify_all()
            on_offer = self._on_offer
        on_offer()  # without the lock: it takes another one, whose holders look at the offer
        try:
            yield
        finally:
            with self._changed:
                self._offer = None
                self._changed.notify_all()

    def next_work(self, batch: Batch, active: Callable[[], bool]) -> Work | None:
        """Return the next run of ``batch`` that a checkpoint wants; None once the batch is settled.

        ``active``: whether the query still runs. Raises StreamEndedError when it does not, and the error that ended the
        job.
        """
        with self._changed:
            while not self._changed.wait_for(lambda: self._has_news(batch), _LOOK_S):
                if not active():
                    raise StreamEndedError(f"The query stopped before batch {batch.number} was settled.")
            if self._settled == batch:
                return None
            if self._ended is not None:
                raise self._ended
            work = self._work
            assert work is not None
            work.taken = True
            return work

    def _has_news(self, batch: Batch) -> bool:
        work = self._work
        wanted = work is not None and not work.taken and work.batch == batch
        return wanted or self._settled == batch or self._ended is not None

    def answer(self, work: Work, result: Votes | Exception) -> bool:
        """Hand the result of a run over; return False if it is not wanted any more."""
        with self._changed:
            if work.result is not None:
                return False
            work.result = result
            self._changed.notify_all()
            return True

    @property
    def settled_digest(self) -> str:
        """The digest of the settled batch, as it was written."""
        with self._changed:
            return self._settled_digest

    def refuse(self, error: HaltedError, active: Callable[[], bool]) -> NoReturn:
        """Halt the job with ``error``, and raise what ended it: mostly ``error``.

        ``active``: whether the query still runs. Raises StreamEndedError when it does not; its next start finds the
        same.
        """
        with self._changed:
            self._refusal = error
            while not self._changed.wait_for(lambda: self._ended is not None, _LOOK_S):
                if not active():
                    raise StreamEndedError("The query stopped before its job was halted.") from error
            assert self._ended is not None
            raise self._ended

    @property
    def newest(self) -> Batch | None:
        """The job's newest completed batch, as far as it is known here."""
        with self._changed:
            return self._newest

    # -- the generation's threads

    @property
    def refusal(self) -> HaltedError | None:
        """Why no further batch may be written; None while it may."""
        with self._changed:
            return self._refusal

    def forbid(self, error: HaltedError) -> None:
        """Halt the job with ``error`` when a batch is planned next."""
        with self._changed:
            self._refusal = error

    @property
    def digest(self) -> str:
        """The digest of all records of the last run that wrote a whole batch."""
        with self._changed:
            return self._digest

    def on_offer(self, call: Callable[[], None]) -> None:
        """Call ``call`` whenever a batch is offered, in Spark's thread."""
        with self._changed:
            self._on_offer = call

    @property
    def offers(self) -> int:
        """How many batches were offered."""
        with self._changed:
            return self._offers

    def wait_offer(self, after: int, closed: threading.Event) -> bool:
        """Wait until more than ``after`` batches were offered, and return True; False when ``closed`` is set before."""
        with self._changed:
            while not self._changed.wait_for(lambda: self._offers > after, _LOOK_S):
                if closed.is_set():
                    return False
        return True

    @property
    def offered(self) -> Found | None:
        with self._changed:
            return self._offer

    def run(self, work: Work) -> Votes:
        """Have Spark's thread run the batch, and return the votes. Raises what the run raised, CheckpointFailedError
        when the query has stopped or :meth:`cancel` was called, ReplayRefusedError when Spark runs another batch."""
        with self._changed:
            self._work = work
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: work.result is not None or self._impossible(work))
            finally:
                self._work = None
            if work.result is None:
                work.result = self._why(work)
            if isinstance(work.result, Exception):
                raise work.result
            if not work.replay:
                votes = next(iter(work.result.values()))  # each sink's have the digests of the whole batch
                self._digest = str(sum((vote.digest for vote in votes), Digest()))
        return work.result

    def _impossible(self, work: Work) -> bool:
        if self._offer is None or self._left:
            return not work.replay
        return self._offer.batch != work.batch

    def _why(self, work: Work) -> OncewardError:
        number = work.batch.number
        if work.replay and self._offer is not None:
            return ReplayRefusedError(
                f"only batch {number} of query {work.batch.query} could write them again, and Spark runs batch "
                f"{self._offer.batch.number} of query {self._offer.batch.query}: the checkpointLocation was replaced"
            )
        return CheckpointFailedError(
            f"The query stopped before batch {number} was written, or its sink was closed. Nothing of it becomes "
            "visible; the next start of the query runs it again."
        )

    def leave(self, stop: Callable[[], None]) -> int | None:
        """End the run of a batch, and begin none. Return the number of the one that ran. ``stop``: see :meth:`cancel`.

        A batch that has run is completed and settled, and lost slots are written again, as if nothing had happened.
        """
        with self._changed:
            self._left = True
            work = self._work
            self._changed.notify_all()
            if work is None or work.replay:
                return None
            self.cancel(stop)
            return work.batch.number

    def cancel(self, stop: Callable[[], None]) -> None:
        """End the wait of :meth:`run`. ``stop`` cancels the running Spark job; called only while one runs, so that it
        cannot hit a later one."""
        with self._changed:
            work = self._work
            if work is None or work.result is not None:
                return
            if work.taken:
                stop()
            work.result = CheckpointFailedError(
                f"Batch {work.batch.number} was cancelled. Nothing of it becomes visible; it is run again."
            )
            self._changed.notify_all()

    def recovered(self, batch: Batch | None) -> None:
        """Record that a generation has recovered the job; ``batch`` is its newest completed one."""
        with self._changed:
            self._recovered, self._newest = True, batch
            if self._settled != batch:
                self._settled = None
            self._changed.notify_all()

    def settled(self, batch: Batch, digest: str) -> None:
        """Record that every transaction of ``batch`` is proved committed. ``digest``: of its records."""
        with self._changed:
            self._settled = self._newest = batch
            self._settled_digest = digest
            self._changed.notify_all()

    def end(self, error: BaseException) -> None:
        """Record that no generation follows: ``error`` is raised in every wait."""
        with self._changed:
            self._ended = error
            self._changed.notify_all()

    @property
    def ended(self) -> BaseException | None:
        """What ended the job; None while it runs."""
        with self._changed:
            return self._ended

    def wait_recovered(self) -> None:
        """Wait until the job is recovered. Raises the error that ended it."""
        with self._changed:
            self._changed.wait_for(lambda: self._recovered or self._ended is not None)
            if self._ended is not None:
                raise self._ended
