"""How records are written, from librdkafka's settings."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from onceward_native import LEVELS, Compression, compressions

__all__ = ["FOLLOWED", "ProduceSettings", "unwritable"]

_DEFAULT_LEVEL: Final = -1
_BATCH_HEADER: Final = 61

FOLLOWED: Final = frozenset(
    {
        "acks",
        "allow.auto.create.topics",
        "batch.size",
        "compression.codec",
        "compression.level",
        "compression.type",
        "delivery.timeout.ms",
        "enable.idempotence",
        "linger.ms",
        "max.in.flight",
        "max.in.flight.requests.per.connection",
        "message.max.bytes",
        "partitioner",
        "queue.buffering.max.ms",
        "request.required.acks",
        "request.timeout.ms",
        "transaction.timeout.ms",
        "transactional.id",
        # Without effect here: the slot bounds what waits and for how long, and batches are bounded by their bytes.
        "batch.num.messages",
        "enable.gapless.guarantee",
        "message.copy.max.bytes",
        "message.send.max.retries",
        "message.timeout.ms",
        "queue.buffering.backpressure.threshold",
        "queue.buffering.max.kbytes",
        "queue.buffering.max.messages",
        "retries",
        "retry.backoff.max.ms",
        "retry.backoff.ms",
        "sticky.partitioning.linger.ms",
        # Of consumers, which share the cluster's settings; librdkafka's producers ignore them, too.
        "auto.offset.reset",
        "check.crcs",
        "enable.auto.commit",
        "enable.auto.offset.store",
        "enable.partition.eof",
        "fetch.error.backoff.ms",
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
    }
)
"""Settings that a writer follows, besides those of connections."""


@dataclass(frozen=True, kw_only=True)
class ProduceSettings:
    identifier: str | None
    """The transactional id."""
    transaction_ms: int
    compression: Compression
    level: int | None
    """None: the library's default."""
    batch_bytes: int
    """A batch is ended before it exceeds this, unless it has one record."""
    most_bytes: int
    """Of a batch of one record."""
    linger_s: float
    """How long records wait for others to fill a batch."""
    replicas_ms: int
    """How long a leader waits for its followers."""
    in_flight: int
    """Requests to a broker."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """``config``: librdkafka's properties, of which none is unfollowed."""
        compression, level = _compression(config)
        record = int(config.get("message.max.bytes", 1_000_000))
        return cls(
            identifier=config.get("transactional.id"),
            transaction_ms=int(config.get("transaction.timeout.ms", 60_000)),
            compression=compression,
            level=level,
            batch_bytes=int(config.get("batch.size", 1_000_000)),
            most_bytes=record + _BATCH_HEADER,
            linger_s=float(config.get("linger.ms", config.get("queue.buffering.max.ms", 5))) / 1000,
            replicas_ms=int(config.get("request.timeout.ms", 30_000)),
            in_flight=min(5, int(config.get("max.in.flight.requests.per.connection", config.get("max.in.flight", 5)))),
        )


def unwritable(config: Mapping[str, Any]) -> str | None:
    """Return the setting whose value only librdkafka follows."""
    name, level = str(config.get("compression.type", config.get("compression.codec", "none"))), _level(config)
    if name not in compressions():
        return f"compression.type={name}"
    if level != _DEFAULT_LEVEL and level not in LEVELS.get(name, range(level, level + 1)):
        return f"compression.level={level}"
    return None


def _compression(config: Mapping[str, Any]) -> tuple[Compression, int | None]:
    name = config.get("compression.type", config.get("compression.codec", "none"))
    level = _level(config)
    return name, level if name in LEVELS and level != _DEFAULT_LEVEL else None


def _level(config: Mapping[str, Any]) -> int:
    return int(config.get("compression.level", _DEFAULT_LEVEL))
