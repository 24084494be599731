"""Where the time of a checkpoint goes, step by step: measured in the worker, sent to the driver with the vote.

Imported on executors: standard library only. Clocks are read for each batch of up to 10,000 records, never per record.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, TypeVar

__all__ = ["Stopwatch", "Timed", "held_share", "of_checkpoint"]

T = TypeVar("T")

_DIGITS = 6


class Timed(Generic[T]):
    """Passes on the items of an iterator and adds up the time it takes to get them."""

    def __init__(self, given: Iterable[T]) -> None:
        self._given = iter(given)
        self.seconds = 0.0
        self.ended: float | None = None
        """When the iterator ended, on the clock of ``time.perf_counter``."""
        self.first: float | None = None
        """When it gave its first item."""

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        began = time.perf_counter()
        try:
            item = next(self._given)
        except StopIteration:
            self.ended = time.perf_counter()
            raise
        finally:
            self.seconds += time.perf_counter() - began
        if self.first is None:
            self.first = time.perf_counter()
        return item


class Stopwatch:
    """Starts when it is created: at the beginning of a slot's task."""

    def __init__(self) -> None:
        self._began, self._at = time.perf_counter(), time.time()

    def steps(self, submitted: float, written: Timed[T], read: Timed[T] | None) -> dict[str, float]:
        """Return the seconds of each step of a slot that has just been written.

        ``submitted``: when the driver began the job, in seconds since the epoch. ``written``: the batches that the
        writer has taken; ``read``: the batches they were made from, None if that happened in another process.
        """
        now = time.perf_counter()
        flush = 0.0 if written.ended is None else now - written.ended
        if read is None:
            given = {"read+transform": written.seconds}
        else:
            given = {"read": read.seconds, "transform": written.seconds - read.seconds}
        steps = {
            "schedule": self._at - submitted,
            **given,
            "produce": now - self._began - written.seconds - flush,
            "flush": flush,
        }
        # below 0: the executor's clock is behind the driver's, or the function reads ahead in its own thread
        return {step: round(max(0.0, seconds), _DIGITS) for step, seconds in steps.items()}


def held_share(slots: Iterable[tuple[float, Mapping[str, float]]]) -> float:
    """Return the share of the tasks' time, 0 to 1, for which something held their reading back.

    ``slots``: the seconds of each that it did, and its steps.
    """
    held = busy = 0.0
    for seconds, steps in slots:
        held += seconds
        busy += sum(took for step, took in steps.items() if step != "schedule")
    return min(1.0, held / busy) if busy > 0 else 0.0


def of_checkpoint(slots: Iterable[Mapping[str, float]], seconds: float) -> dict[str, float]:
    """Return the seconds of each step of a checkpoint whose tasks took ``seconds``, Spark's overhead included.

    The steps are those of the slot that voted last, which all others waited for. `schedule` is the time until the first
    task began; `queue` is how much later that slot's task began, for lack of a free core; `vote` is the time from the
    last vote until the driver has all votes. Empty when no slot has steps.
    """
    reported = [steps for steps in slots if steps]
    if not reported:
        return {}
    last = max(reported, key=lambda steps: sum(steps.values()))
    work = {step: took for step, took in last.items() if step != "schedule"}
    before = min(last["schedule"], max(0.0, seconds - sum(work.values())))  # an executor's clock may be ahead
    first = min(before, *(steps["schedule"] for steps in reported))
    found = {
        "schedule": first,
        "queue": before - first,
        **work,
        "vote": max(0.0, seconds - before - sum(work.values())),
    }
    return {step: round(took, _DIGITS) for step, took in found.items()}
