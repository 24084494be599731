"""A rate per partition. Pure: the caller passes the time."""

from onceward.sources.kafka.positions import Partition

__all__ = ["BURST_SECONDS", "RateLimit"]

BURST_SECONDS = 60.0
"""An idle partition may save up tokens for at least this long."""


class RateLimit:
    """A token bucket per partition. The caller passes the time (monotonic seconds)."""

    def __init__(self, offsets_per_second: float, *, interval: float = 0.0, begin: float | None = None) -> None:
        """``interval``: seconds between two checkpoints. An idle partition always saves up enough for two. ``begin``:
        tokens with which a partition begins; None = one second's worth."""
        self._rate = offsets_per_second
        self._begin = offsets_per_second if begin is None else begin
        self._most = max(1.0, offsets_per_second * max(BURST_SECONDS, 2 * interval))  # one, or nothing could be taken
        self._tokens: dict[Partition, tuple[float, float]] = {}

    def allowed(self, partition: Partition, now: float) -> int:
        """Return the offsets that may be taken now."""
        tokens, since = self._tokens.get(partition, (self._begin, now))
        tokens = min(tokens + (now - since) * self._rate, self._most)
        self._tokens[partition] = (tokens, now)
        return int(tokens)

    def took(self, partition: Partition, offsets: int) -> None:
        """Subtract the offsets taken after :meth:`allowed`."""
        tokens, since = self._tokens[partition]
        self._tokens[partition] = (tokens - offsets, since)

    def wait(self, partition: Partition) -> float:
        """Return the seconds from the last :meth:`allowed` until one offset may be taken; 0 if one may."""
        tokens, _ = self._tokens[partition]
        return max(0.0, (1 - tokens) / self._rate)
