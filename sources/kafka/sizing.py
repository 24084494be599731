"""How large the next checkpoint may be, so that it takes about as long as it should. Pure: no clock, time comes in.

Sizes follow the measured speed: a checkpoint that took half of the time that is aimed at may be followed by one of
twice the size. A checkpoint costs about ``fixed + each * offsets`` seconds, so on the way up none takes longer than was
aimed at. ``fixed`` is where the line through the newest checkpoints begins. Where it takes half of the aim or more,
smaller ranges would hardly be quicker, only carry less: the aim is twice the fixed part then.

What others do, and what is taken from it: Spark Streaming's ``PIDRateEstimator`` follows the measured rate with weight
1, learns nothing from the first batch and is never zero (SPARK-9966), but knows no fixed part, and lets the first batch
take everything unless it is told otherwise (SPARK-18580); here the first one is small. Flink's ``BufferDebloater``
sizes buffers by the time in which they should be consumed, bounds how fast they grow, and leaves them alone while they
are nearly right; so is it here.
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

_NEARLY = 1.2
"""A size is left alone while the time is off by less than this factor."""
_FORGET = 0.8
"""Weight of what was seen, from one checkpoint to the next."""
_PRIOR = 0.1
"""Weight of the former ``fixed`` against one checkpoint: sizes that hardly differ say hardly anything about it."""
_FADE = 0.98
"""Of the former ``fixed`` is believed on: sizes that rest on it move a little, which shows whether it is right."""


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
class _Line:
    """Sums over the checkpoints seen, the older the lighter: what a straight line through them needs."""

    weight: float = 0.0
    n: float = 0.0
    nn: float = 0.0
    s: float = 0.0
    ns: float = 0.0

    def with_point(self, n: float, s: float) -> "_Line":
        return _Line(
            weight=self.weight * _FORGET + 1,
            n=self.n * _FORGET + n,
            nn=self.nn * _FORGET + n * n,
            s=self.s * _FORGET + s,
            ns=self.ns * _FORGET + n * s,
        )

    def at_zero(self, former: float) -> float:
        """Where the line begins: least squares, with ``former`` counting like a part of one more point at 0.

        A line that falls is taken for a level one: size makes no difference that could be seen.
        """
        weight, s = self.weight + _PRIOR, self.s + _PRIOR * former
        slope = (weight * self.ns - self.n * s) / (weight * self.nn - self.n * self.n)
        return max(0.0, (s - max(0.0, slope) * self.n) / weight)


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
    _lines: tuple[_Line, ...] = (_Line(), _Line(), _Line())

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
        if ran.failed or ran.seconds > self.longest_aim:
            return replace(self._observe(ran), least=self.least // 2)
        return self._observe(ran)

    def _observe(self, ran: Ran) -> "Sizing":
        if ran.failed:
            # Whatever it was, memory, time or one record: less of it is less likely to fail, and names it better.
            factor = min(0.5, self.target / max(ran.seconds, 1e-9))
            return self._lowered(ran, factor)
        # Where the backlog moves between few partitions and many, time may follow the sum, the longest range, or the
        # one that is nearer to its limit. What one of them explains is not fixed.
        share = self.total(ran.ranges) / self.per_range
        sizes = (ran.offsets, ran.longest, max(ran.offsets, ran.longest * share))
        lines = self._lines
        if self._warm:
            lines = tuple(line.with_point(size, ran.seconds) for line, size in zip(lines, sizes, strict=True))
        # Where nothing smaller was tried, all of it may be fixed: something larger is tried then.
        former = ran.seconds if ran.offsets <= self.least * ran.ranges else self.fixed * _FADE
        fixed = min(ran.seconds, *(line.at_zero(former) for line in lines)) if self._warm else 0.0
        known = replace(self, fixed=fixed, _warm=True, _lines=lines)
        # One that ran long is followed by a smaller one in any case; whether that is any quicker will be seen then.
        target = self.target if ran.seconds > self.target * _NEARLY else known.target
        factor = min(GROWTH, target / max(ran.seconds, 1e-9))
        if 1 / _NEARLY < factor < _NEARLY:
            return known
        if factor > 1:
            return replace(
                known,
                offsets=max(self.offsets, math.ceil(ran.offsets * factor)),
                longest=max(self.longest, math.ceil(ran.longest * factor)),
            )
        if ran.everything:
            # A pause of the machine is as likely as a slower job, and what came meanwhile should not have to wait. It
            # fits into twice as much; more must not be tried.
            factor = 2.0
        return known._lowered(ran, factor)

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
