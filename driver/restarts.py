"""When a failed job restarts: exponential delay with jitter, Flink's default."""

import random
from dataclasses import dataclass
from datetime import timedelta

from onceward.common.errors import (
    ConfigurationError,
    CoordinatorLostError,
    FencedError,
    HaltedError,
    PreflightError,
    RefusedError,
)
from onceward.protocol.settings import Duration, as_duration

FINAL = (ConfigurationError, PreflightError, HaltedError, FencedError, CoordinatorLostError, RefusedError)
"""Errors that another generation cannot fix."""


@dataclass(frozen=True, kw_only=True)
class Restart:
    """Exponential delay with Flink's defaults (``restart-strategy.exponential-delay``, FLINK-33736)."""

    initial: Duration = "1s"
    maximum: Duration = "1min"
    multiplier: float = 1.5
    jitter: float = 0.1
    """Fraction of the delay by which it varies in both directions."""
    attempts: int | None = None
    """Restarts in a row before the job gives up; None = no limit."""
    reset_after: Duration = "1h"
    """Life of a generation that resets the delay to ``initial``; settling as much input as had failed does so too."""

    def __post_init__(self) -> None:
        problems = []
        for name in ("initial", "maximum", "reset_after"):
            try:
                object.__setattr__(self, name, as_duration(getattr(self, name)))
            except ValueError as error:
                problems.append(f"{name}: {error}")
        if self.multiplier < 1 or not 0 <= self.jitter < 1 or (self.attempts is not None and self.attempts < 0):
            problems.append("multiplier must be at least 1, jitter in [0, 1), attempts not negative")
        if problems:
            raise ConfigurationError("The restart strategy cannot be used:\n  " + "\n  ".join(problems))

    def delay(self, failures: int, chance: random.Random) -> float | None:
        """Return the seconds to wait after the ``failures``-th failure in a row (from 1); None = give up."""
        if self.attempts is not None and failures > self.attempts:
            return None
        initial, maximum = (as_duration(d) / timedelta(seconds=1) for d in (self.initial, self.maximum))
        delay = min(maximum, initial * self.multiplier ** min(failures - 1, 60))
        return float(delay * (1 + chance.uniform(-self.jitter, self.jitter)))


NO_RESTART = Restart(attempts=0)


@dataclass(frozen=True, kw_only=True)
class NextStart:
    """Whether and when a failed job starts again."""

    delay: float | None
    """Seconds until its next generation; None = never."""
    failures: int = 1
    """Failures in a row without getting past the input that failed first."""


class Hold:
    """Until when the records of a checkpoint must not be read again, whatever generation comes to read them."""

    def __init__(self) -> None:
        self._until = 0.0

    def hold(self, until: float) -> None:
        """``until``: on the runtime's monotonic clock."""
        self._until = max(self._until, until)

    def left(self, now: float) -> float:
        """Return the seconds that are left."""
        return max(0.0, self._until - now)


class Restarts:
    """Decides after each failure whether and when the job restarts."""

    def __init__(self, strategy: Restart, chance: random.Random | None = None) -> None:
        """``chance``: the source of the jitter; for tests."""
        self._strategy = strategy
        self._chance = chance or random.Random()
        self._failures = 0
        self._ahead = 0
        """Records to settle before the job has passed the input that failed."""
        self._decided: tuple[BaseException, NextStart] | None = None

    def after(self, error: BaseException, *, settled: int | None, failed: int, lasted: float) -> NextStart:
        """Return what follows ``error``; asked again about the same error, return the same.

        :param settled: records that the generation has settled; None = it has settled nothing.
        :param failed: records in the plan of its failed checkpoint. Checkpoints get smaller with each failure and
            settle the records before the one that fails, so settling fewer than this is no progress.
        :param lasted: seconds that the generation has lived.
        """
        if self._decided is None or self._decided[0] is not error:
            reset_after = as_duration(self._strategy.reset_after) / timedelta(seconds=1)
            if lasted >= reset_after or (settled is not None and settled >= self._ahead):
                self._failures, self._ahead = 0, 0
            self._failures += 1
            self._ahead = max(self._ahead - (settled or 0), failed)
            start = NextStart(delay=self._strategy.delay(self._failures, self._chance), failures=self._failures)
            self._decided = (error, start)
        return self._decided[1]
