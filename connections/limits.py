"""How long the data path's Kafka client waits for a broker, and how fast it reconnects.

Every client gets these unless ``KafkaCluster(config=...)`` says otherwise (docs/reference/limits.md#time-limits). Runs
on executors too: standard library only.
"""

from collections.abc import Mapping
from typing import Final

__all__ = ["CLIENT_LIMITS", "LOST_S", "SILENCE_MS"]

SILENCE_MS: Final = 12_000
"""A request unanswered after this time breaks its connection and is retried on a new one. The client's own limits are
60 s, and for a producer with a transactional id almost the timeout of its transaction."""

LOST_S: Final = 3.0
"""A client without progress for this long may know no broker any more: it gets its bootstrap servers again."""

CLIENT_LIMITS: Final[Mapping[str, str]] = {
    # For a broker that accepts a connection and stays silent.
    "socket.connection.setup.timeout.ms": "10000",
    "socket.timeout.ms": str(SILENCE_MS),
    "socket.keepalive.enable": "true",
    # The client doubles the pause each time, with jitter from -25 % to +50 %.
    "reconnect.backoff.ms": "50",
    "reconnect.backoff.max.ms": "2000",
    # The client's default starts over from the bootstrap servers whenever the last connection breaks, and resets the
    # backoff: up to 65 connections a second to a port that accepts and hangs up (seen with 2.16.0). With "none" the
    # client never recovers once brokers have named no broker, so Onceward gives it its bootstrap servers again
    # (`LOST_S`).
    "metadata.recovery.strategy": "none",
}
