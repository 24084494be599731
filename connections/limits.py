"""How long the data path's Kafka client waits for a broker, and how fast it comes back.

Every client gets these unless ``KafkaCluster(config=...)`` says otherwise (docs/operations.md#time-limits). Runs on
executors too: standard library only.
"""

from collections.abc import Mapping
from typing import Final

__all__ = ["CLIENT_LIMITS", "SILENCE_MS"]

SILENCE_MS: Final = 12_000
"""A request that is not answered by then breaks its connection: what was asked is asked again on a new one. The
client's own limits are 60 s, and for a producer with a transactional id almost the timeout of its transaction."""

CLIENT_LIMITS: Final[Mapping[str, str]] = {
    # A broker that accepts a connection and says nothing.
    "socket.connection.setup.timeout.ms": "10000",
    "socket.timeout.ms": str(SILENCE_MS),
    "socket.keepalive.enable": "true",
    # Doubled each time, by the client with jitter from -25 % to +50 %.
    "reconnect.backoff.ms": "50",
    "reconnect.backoff.max.ms": "2000",
    # The client's default begins anew from the bootstrap servers whenever the last connection breaks, and forgets the
    # backoff with that: 18 connections a second to a port that accepts and hangs up (seen with 2.16.0). The bootstrap
    # servers stay in its list all the same.
    "metadata.recovery.strategy": "none",
}
