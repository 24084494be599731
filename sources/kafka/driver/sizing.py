"""How large the next checkpoint may be. Pure: no clock, the caller passes times.

Goal: the work of a checkpoint takes about the interval, so that a backlog is worked off without pauses and without
coming near the timeout. If an empty checkpoint takes more than half of that, smaller ranges would hardly be quicker,
but carry less: the target is then twice this *fixed* part.

Method: the size changes by target / measured time from one checkpoint to the next, by a tenth at least and
:data:`GROWTH` times at most. So it keeps oscillating around its target, and two sizes that differ enough reveal the
fixed part. A checkpoint that took far longer than the previous one is not used as a measurement: it makes the next few
smaller and has no other effect.
"""

import math
from dataclasses import dataclass, replace

__all__ = ["AIM_BACK_TO_BACK", "FIRST", "GROWTH", "LEAST", "PART_OF_TIMEOUT", "Ran", "Sizing", "first_sizing"]

FIRST = 1_000
"""Offsets of the first checkpoint: quick even with records of 1 MB, or with a tenth of a second per record."""
LEAST = 25
"""Offsets per range below which cutting is not worthwhile: a smaller checkpoint is hardly quicker and carries next to
nothing. Fewer are read only if even these come near the timeout."""
GROWTH = 8.0
"""Largest change from one checkpoint to the next, to limit the harm of a cost that grows faster than the size."""
AIM_BACK_TO_BACK = 1.0
"""Seconds that a checkpoint of a backlog should take without an interval."""
PART_OF_TIMEOUT = 0.25
"""Largest share of the checkpoint timeout, so that a machine may suddenly become four times slower."""

_STEP = 1.1
"""Smallest factor by which a size changes."""
_STRANGE = 2.0
"""A checkpoint that takes this many times its target was disturbed."""
_TELLING = 1.5
"""Two sizes that differ by less than this factor do not reveal the fixed part."""
_MOST = 3.0
"""A target is at most this many times ``longest_aim``, three quarters of the timeout: no size makes up for more."""
_MOSTLY = 0.5
"""A checkpoint that was held back for this share of its time measures the brokers' quota, nothing else."""
_FADE = 0.98
"""Decay of ``fixed``: it makes sizes that depend on it move a little, which shows whether it is right."""


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A checkpoint that read records."""

    offsets: int
    """In all its ranges; above 0."""
    longest: int
    """In the longest range. One task reads it, so its time does not depend on the other tasks."""
    ranges: int
    """Number of non-empty ranges."""
    seconds: float
    """From the end of planning to the last vote, or to its failure."""
    everything: bool = False
    """The checkpoint took the whole backlog: no limit determined its size."""
    failed: bool = False
    """It failed; a success would have taken longer."""
    held: float = 0.0
    """Seconds for which the brokers held its reading back, as for a quota."""


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """The time that checkpoints of about one size took."""

    offsets: int
    seconds: float

    def fixed(self, other: "_Seen") -> float:
        """Return where the line through both begins. A falling line counts as level: size makes no difference."""
        small, large = sorted((self, other), key=lambda one: one.offsets)
        slope = max(0.0, (large.seconds - small.seconds) / (large.offsets - small.offsets))
        return max(0.0, min(small.seconds, large.seconds) - slope * small.offsets)


@dataclass(frozen=True, kw_only=True)
class Sizing:
    """The limits of the next checkpoint. :meth:`observe` returns those of the one after it."""

    aim: float
    """Seconds that a checkpoint should take, above 0."""
    longest_aim: float
    """Longest time that reading may add to the fixed part; not below ``aim``."""
    offsets: int = FIRST
    """In all ranges together, at least 1."""
    longest: int = FIRST
    """In each range, at least 1. Both limits apply: if many short ranges become one long one, or one becomes many, the
    checkpoint must not take longer than either did."""
    least: int = LEAST
    """In each range with that much backlog, whatever the other two limits are; 0 = only they apply."""
    fixed: float = 0.0
    """Estimated seconds that a checkpoint takes however little it reads."""
    _warm: bool = False
    """Whether the first checkpoint is over. It also starts Python workers and connections: its time is no measure."""
    _seen: _Seen | None = None
    """The last distinct size, for comparison with the next one."""

    @property
    def target(self) -> float:
        """Seconds that are actually aimed at."""
        return max(self.aim, min(2 * self.fixed, self.fixed + self.longest_aim, _MOST * self.longest_aim))

    def total(self, ranges: int) -> int:
        """Return the limit of offsets over all ranges, if ``ranges`` of them have a backlog; at least 1."""
        return max(self.offsets, self.least * ranges)

    @property
    def per_range(self) -> int:
        """Limit of offsets in each range; at least 1."""
        return max(self.longest, self.least)

    def observe(self, ran: Ran) -> "Sizing":
        """Return the limits of the next checkpoint after ``ran``."""
        if ran.failed:
            # Whatever the cause, memory, time or one record: less input is less likely to fail, and narrows it down.
            factor = min(1 / 2, self.target / max(ran.seconds, 1e-9))
            return replace(self._lowered(ran, factor), least=self.least // 2)
        if ran.held > ran.seconds * _MOSTLY:
            return self._at_the_quota(ran)
        known = self._learned(ran) if self._warm else replace(self, _warm=True)
        # A checkpoint that ran long is always followed by a smaller one, which then shows whether that is quicker.
        target = min(self.target, known.target) if ran.seconds > self.target * _STEP else known.target
        factor = max(1 / GROWTH, min(GROWTH, target / max(ran.seconds, 1e-9)))
        if factor >= 1:
            factor = max(factor, _STEP)
            return replace(
                known,
                offsets=max(self.offsets, math.ceil(ran.offsets * factor)),
                longest=max(self.longest, math.ceil(ran.longest * factor)),
            )
        if ran.everything:
            # A pause of the machine is as likely as a slower job, and records that arrived meanwhile should not have to
            # wait. They fit into twice the size; more must not be tried.
            return known._lowered(ran, 2.0)
        return known._lowered(ran, min(factor, 1 / _STEP))

    def _at_the_quota(self, ran: Ran) -> "Sizing":
        """A quota sets the pace, so that no size is quicker. The larger, the less is fetched twice: brokers send whole
        batches, also where a range begins or ends in the middle of one. A short checkpoint may have read little of what
        was fetched, so its time says hardly anything of a larger one, except that this is not above the proportion."""
        aim = self.longest_aim * (_MOST if ran.seconds < self.longest_aim / 2 else 1)
        factor = max(1 / GROWTH, min(GROWTH, aim / ran.seconds))
        return replace(
            self,
            offsets=max(1, math.ceil(ran.offsets * factor)),
            longest=max(1, math.ceil(ran.longest * factor)),
            _seen=None,
        )

    def _learned(self, ran: Ran) -> "Sizing":
        least = self.least
        if ran.seconds > max(self.target, self.longest_aim):
            least //= 2
        elif ran.seconds < self.longest_aim / 2:
            least = max(least, min(LEAST, 2 * least + 1))
        now, fixed, seen = _Seen(offsets=ran.offsets, seconds=ran.seconds), self.fixed * _FADE, self._seen
        if seen is None:
            seen = now
        elif ran.seconds > _STRANGE * max(seen.seconds, self.target):
            seen = None  # it is no measure for other sizes
        elif max(now.offsets, seen.offsets) < _TELLING * min(now.offsets, seen.offsets):
            if ran.offsets <= self.least * ran.ranges:
                fixed = ran.seconds  # no smaller size was tried, so all may be fixed: a larger one will show
        else:
            fixed, seen = (fixed + now.fixed(seen)) / 2, now
        return replace(self, fixed=min(fixed, ran.seconds), least=least, _seen=seen)

    def _lowered(self, ran: Ran, factor: float) -> "Sizing":
        return replace(
            self,
            offsets=max(1, min(self.offsets, int(ran.offsets * factor))),
            longest=max(1, min(self.longest, int(ran.longest * factor))),
        )


def first_sizing(interval: float | None, timeout: float) -> Sizing | None:
    """Return the sizing of the first checkpoint, from the job's settings in seconds; None without an interval."""
    if interval is None:
        return None
    longest = timeout * PART_OF_TIMEOUT
    return Sizing(aim=min(interval or AIM_BACK_TO_BACK, longest), longest_aim=longest)
