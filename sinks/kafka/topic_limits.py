"""What a topic takes. For driver and executors: standard library only."""

from dataclasses import dataclass

__all__ = ["TopicLimits"]


@dataclass(frozen=True, kw_only=True)
class TopicLimits:
    """What a topic takes, as far as the brokers report it."""

    topic: str
    batch_bytes: int | None = None
    """Of the largest batch."""
    keyed: bool = False
    """It is compacted: its brokers refuse a record without a key."""
