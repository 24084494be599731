"""Warn about old transactions: the brokers abort a transaction that is not ended in time; what was decided for it is
then lost."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from enum import IntEnum

from onceward.common.printable import logger
from onceward.driver.journal import Journal
from onceward.driver.outputs import Held
from onceward.driver.runtime import THREADS, Runtime
from onceward.protocol.committing import Age

__all__ = ["Ages", "good_for"]

_log = logger("onceward.pipeline")

_LOOK_INTERVAL_S = 1.0
_SHOWN = 10


_LONGEST_RESERVE = timedelta(minutes=1)


def good_for(timeouts: Iterable[timedelta]) -> float | None:
    """Return the seconds from its beginning within which a checkpoint must be decided, so that transactions with these
    timeouts can still be committed; None when nothing times out. A tenth of the shortest timeout, at most a minute, is
    reserved for the decision's way to the brokers."""
    shortest = min(timeouts, default=None)
    if shortest is None:
        return None
    return (shortest - min(shortest / 10, _LONGEST_RESERVE)).total_seconds()


class _Stage(IntEnum):
    """Percent of its timeout that a transaction has used."""

    FINE = 0
    HALF = 50
    NEARLY_ALL = 90


class Ages:
    """Watches the age of pre-committed transactions. Logs each stage once, for all that reach it together."""

    def __init__(self, ages: Callable[[Held], Iterable[Age]], journal: Journal, runtime: Runtime = THREADS) -> None:
        self._ages = ages
        self._journal = journal
        self._monotonic = runtime.monotonic
        self._lock = runtime.lock()
        self._looked = float("-inf")
        self._reported: dict[str, _Stage] = {}
        self._began: dict[str, float] = {}
        """When this process began transactions, on its monotonic clock: the wall clocks of machines differ."""
        self._oldest: Age | None = None
        """The oldest at the last look."""

    def began(self, ages: Iterable[Age], at: float) -> None:
        """Record that this process began these transactions, not before ``at`` on its monotonic clock."""
        with self._lock:
            self._began |= {age.transaction: at for age in ages}

    def look(self, held: Callable[[], Held]) -> None:
        """Check the ages of ``held()``, at most once a second: for loops that wait, in any thread."""
        with self._lock:
            if self._monotonic() - self._looked < _LOOK_INTERVAL_S:
                return
            self._looked = self._monotonic()
            reached: dict[_Stage, list[str]] = {}
            now: dict[str, _Stage] = {}
            self._oldest = None
            for reported in self._ages(held()):
                age = self._ours(reported)
                if self._oldest is None or age.open_for > self._oldest.open_for:
                    self._oldest = age
                stage = _stage(100 * (age.open_for / age.timeout))
                now[age.transaction] = stage
                if stage > self._reported.get(age.transaction, _Stage.FINE):
                    reached.setdefault(stage, []).append(age.transaction)
            self._reported = now
        for stage, transactions in sorted(reached.items()):
            self._tell(stage, transactions)

    def _ours(self, age: Age) -> Age:
        """Measure the age on this process's clock if this process began the transaction."""
        at = self._began.get(age.transaction)
        return age if at is None else replace(age, open_for=timedelta(seconds=self._looked - at))

    def oldest(self, held: Callable[[], Held]) -> Age | None:
        """Return the oldest of ``held()``, at most a second out of date; None when none is held."""
        self.look(held)
        with self._lock:
            return self._oldest

    def _tell(self, stage: _Stage, transactions: list[str]) -> None:
        named = ", ".join(transactions[:_SHOWN]) + (" and others" if len(transactions) > _SHOWN else "")
        self._journal.log("transaction ages", used_percent=stage.value, transactions=len(transactions))
        _log.log(
            logging.ERROR if stage is _Stage.NEARLY_ALL else logging.WARNING,
            "%d pre-committed transactions have used %d %% of their timeout: %s. After it, the brokers abort them, and "
            "those of completed checkpoints are lost. Restore what keeps them open: the brokers, or the coordinator.",
            len(transactions),
            stage.value,
            named,
        )


def _stage(percent: float) -> _Stage:
    return max((stage for stage in _Stage if stage <= percent), default=_Stage.FINE)
