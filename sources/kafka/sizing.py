"""How large the next checkpoint may be. Pure: no clock, time comes in.

What is controlled: the work of a checkpoint takes about the interval, so that a backlog is worked off without pauses
and without coming near the timeout. Where an empty checkpoint takes more than half of that, smaller ranges would hardly
be quicker, only carry less: the target is twice this *fixed* part then.

How: the size changes by target / measured time from one checkpoint to the next, by a tenth at least and
:data:`GROWTH` times at most. So it is always on the move, to and fro around its target, and two sizes that differ
enough show the fixed part. A checkpoint that took far longer than the one before is not taken for a measure: the next
few are smaller, and nothing else remains of it.
"""

import math
from dataclasses import dataclass, replace

__all__ = ["AIM_BACK_TO_BACK", "FIRST", "GROWTH", "LEAST", "PART_OF_TIMEOUT", "Ran", "Sizing", "first_sizing"]

FIRST = 1_000
"""Offsets of the first checkpoint: quick even with records of 1 MB, or with a tenth of a second for each."""
LEAST = 25
"""Offsets of each range that are not worth cutting: below it a checkpoint is hardly quicker and carries next to
nothing. Only where even these come near the timeout fewer are read."""
GROWTH = 8.0
"""From one checkpoint to the next at most, so that a cost which grows faster than the size cannot do much harm."""
AIM_BACK_TO_BACK = 1.0
"""Seconds that a checkpoint of a backlog should take where no interval says so."""
PART_OF_TIMEOUT = 0.25
"""Of the checkpoint timeout at most, so that a machine may become four times slower from one moment to the next."""

_STEP = 1.1
"""A size changes at least by this factor."""
_STRANGE = 2.0
"""So much longer than its target no checkpoint takes, unless something has happened."""
_TELLING = 1.5
"""Two sizes that differ by less than this factor say nothing about the fixed part."""
_FADE = 0.98
"""Of ``fixed`` is believed on: sizes that rest on it move a little, which shows whether it is right."""


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A checkpoint that read something."""

    offsets: int
    """In all its ranges; above 0."""
    longest: int
    """In the longest range. One task reads it, so it takes its time whatever the other tasks do."""
    ranges: int
    """With something in them."""
    seconds: float
    """From the end of planning to the last vote, or to its failure."""
    everything: bool = False
    """Nothing that waited was left: no limit has made it as large as it was."""
    failed: bool = False
    """It came to nothing; had it not, it had taken longer."""


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """What checkpoints of about one size took."""

    offsets: int
    seconds: float

    def fixed(self, other: "_Seen") -> float:
        """Where the line through both begins. One that falls is taken for a level one: size makes no difference."""
        small, large = sorted((self, other), key=lambda one: one.offsets)
        slope = max(0.0, (large.seconds - small.seconds) / (large.offsets - small.offsets))
        return max(0.0, min(small.seconds, large.seconds) - slope * small.offsets)


@dataclass(frozen=True, kw_only=True)
class Sizing:
    """What the next checkpoint may take. :meth:`observe` gives what the one after it may."""

    aim: float
    """Seconds that a checkpoint should take, above 0."""
    longest_aim: float
    """Seconds that it may be made to take where its fixed part asks for more; not below ``aim``."""
    offsets: int = FIRST
    """In all ranges together, at least 1."""
    longest: int = FIRST
    """In each range, at least 1. Both are kept: many short ranges that become one long one, or one that becomes many,
    must not take longer than either did."""
    least: int = LEAST
    """In each range where so much waits, whatever the other two say; 0 = they alone count."""
    fixed: float = 0.0
    """Seconds that a checkpoint takes however little it reads, as far as is known."""
    _warm: bool = False
    """Whether the first checkpoint is over. It starts Python workers and connections too: its time is no measure."""
    _seen: _Seen | None = None
    """The last size that differed, which the next one that does is compared with."""

    @property
    def target(self) -> float:
        """Seconds that are really aimed at."""
        return min(max(self.aim, 2 * self.fixed), self.longest_aim)

    def total(self, ranges: int) -> int:
        """Offsets in all ranges together, where something waits for ``ranges`` of them; at least 1."""
        return max(self.offsets, self.least * ranges)

    @property
    def per_range(self) -> int:
        """Offsets in each range; at least 1."""
        return max(self.longest, self.least)

    def observe(self, ran: Ran) -> "Sizing":
        """What the next checkpoint may take after ``ran``."""
        if ran.failed:
            # Whatever it was, memory, time or one record: less of it is less likely to fail, and names it better.
            factor = min(1 / 2, self.target / max(ran.seconds, 1e-9))
            return replace(self._lowered(ran, factor), least=self.least // 2)
        known = self._learned(ran) if self._warm else replace(self, _warm=True)
        # One that ran long is followed by a smaller one in any case; whether that is any quicker will be seen then.
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
            # A pause of the machine is as likely as a slower job, and what came meanwhile should not have to wait. It
            # fits into twice as much; more must not be tried.
            return known._lowered(ran, 2.0)
        return known._lowered(ran, min(factor, 1 / _STEP))

    def _learned(self, ran: Ran) -> "Sizing":
        least = self.least
        if ran.seconds > self.longest_aim:
            least //= 2
        elif ran.seconds < self.longest_aim / 2:
            least = max(least, min(LEAST, 2 * least + 1))
        now, fixed, seen = _Seen(offsets=ran.offsets, seconds=ran.seconds), self.fixed * _FADE, self._seen
        if seen is None:
            seen = now
        elif ran.seconds > _STRANGE * max(seen.seconds, self.target):
            seen = None  # it is no measure for others
        elif max(now.offsets, seen.offsets) < _TELLING * min(now.offsets, seen.offsets):
            if ran.offsets <= self.least * ran.ranges:
                fixed = ran.seconds  # nothing smaller was tried, so all of it may be fixed: something larger will tell
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
    """For the first checkpoint, by the job's settings in seconds; None without an interval: nothing to aim at then."""
    if interval is None:
        return None
    longest = timeout * PART_OF_TIMEOUT
    return Sizing(aim=min(interval or AIM_BACK_TO_BACK, longest), longest_aim=longest)
