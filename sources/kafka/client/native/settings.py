"""How much is fetched, from librdkafka's settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

__all__ = ["FOLLOWED", "FetchSettings"]

_KIB = 1024

FOLLOWED: Final = frozenset(
    {
        "allow.auto.create.topics",
        "auto.offset.reset",
        "check.crcs",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.partition.eof",
        "fetch.max.bytes",
        "fetch.message.max.bytes",
        "fetch.min.bytes",
        "fetch.queue.backoff.ms",
        "fetch.wait.max.ms",
        "group.id",
        "isolation.level",
        "max.partition.fetch.bytes",
        "queued.max.messages.kbytes",
        "queued.min.messages",
        # Of producers, which share the cluster's settings; librdkafka's consumers ignore them, too.
        "acks",
        "batch.num.messages",
        "batch.size",
        "compression.codec",
        "compression.level",
        "compression.type",
        "delivery.timeout.ms",
        "enable.gapless.guarantee",
        "enable.idempotence",
        "linger.ms",
        "max.in.flight",
        "max.in.flight.requests.per.connection",
        "message.copy.max.bytes",
        "message.max.bytes",
        "message.send.max.retries",
        "message.timeout.ms",
        "partitioner",
        "queue.buffering.backpressure.threshold",
        "queue.buffering.max.kbytes",
        "queue.buffering.max.messages",
        "queue.buffering.max.ms",
        "request.required.acks",
        "request.timeout.ms",
        "retries",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "sticky.partitioning.linger.ms",
        "transaction.timeout.ms",
    }
)
"""Settings that a reader follows, besides those of connections."""


@dataclass(frozen=True, kw_only=True)
class FetchSettings:
    partition_bytes: int
    """Of one partition in one answer; a larger batch comes whole."""
    answer_bytes: int
    """Of all partitions in one answer."""
    least_bytes: int
    """Brokers wait for so much,"""
    wait_ms: int
    """and for this time at most."""
    ahead: bool
    """Fetch while what has come is read."""
    check: bool
    """Compare checksums."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """``config``: librdkafka's properties."""
        partition = int(config.get("fetch.message.max.bytes", config.get("max.partition.fetch.bytes", 1024 * _KIB)))
        queued = _KIB * int(config.get("queued.max.messages.kbytes", 64 * _KIB))
        # One answer is read while the next one is on its way.
        answer = min(int(config.get("fetch.max.bytes", 50 * 1024 * _KIB)), queued // 2)
        return cls(
            partition_bytes=partition,
            answer_bytes=max(answer, partition),
            least_bytes=int(config.get("fetch.min.bytes", 1)),
            wait_ms=int(config.get("fetch.wait.max.ms", 500)),
            ahead=int(config.get("queued.min.messages", 100_000)) > 1,
            check=str(config.get("check.crcs", "true")).lower() == "true",
        )
