"""Where the time of a checkpoint goes, step by step: measured in the worker, carried to the driver by the vote.

Imported on executors: standard library only. Clocks are read for each batch of up to 10,000 records, never per record.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Generic, TypeVar

__all__ = ["Stopwatch", "Timed", "of_checkpoint"]

T = TypeVar("T")

_DIGITS = 6


class Timed(Generic[T]):
    """Passes on what an iterator yields, and adds up how long that took."""

    def __init__(self, given: Iterable[T]) -> None:
        self._given = iter(given)
        self.seconds = 0.0
        self.ended: float | None = None
        """When there was nothing more, on the clock of ``time.perf_counter``."""

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        began = time.perf_counter()
        try:
            return next(self._given)
        except StopIteration:
            self.ended = time.perf_counter()
            raise
        finally:
            self.seconds += time.perf_counter() - began


class Stopwatch:
    """Starts when it is made: at the beginning of a slot's task."""

    def __init__(self) -> None:
        self._began, self._at = time.perf_counter(), time.time()

    def steps(self, submitted: float, written: Timed[T], read: Timed[T] | None) -> dict[str, float]:
        """Seconds of each step of a slot that has been written just now.

        ``submitted``: when the driver began with the job, in seconds since the epoch. ``written``: the batches that the
        writer has taken; ``read``: what they were made of, None where that happened in another process.
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
        # below 0: the executor's clock is behind the driver's, or the function reads ahead in a thread of its own
        return {step: round(max(0.0, seconds), _DIGITS) for step, seconds in steps.items()}


def of_checkpoint(slots: Iterable[Mapping[str, float]], seconds: float) -> dict[str, float]:
    """Seconds of each step of a checkpoint whose tasks took ``seconds`` with all that Spark did for them.

    The slot that voted last is told: its steps are what everybody waited for. `schedule` is the time until the first
    task began, `queue` how much later that slot's did, for want of a free core; `vote` lies between the last vote and
    the driver's having all of them. Empty where no slot tells anything.
    """
    told = [steps for steps in slots if steps]
    if not told:
        return {}
    last = max(told, key=lambda steps: sum(steps.values()))
    first = min(steps["schedule"] for steps in told)
    found = {
        "schedule": first,
        "queue": last["schedule"] - first,
        **{step: took for step, took in last.items() if step != "schedule"},
        "vote": max(0.0, seconds - sum(last.values())),
    }
    return {step: round(took, _DIGITS) for step, took in found.items()}
