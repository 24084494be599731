"""The Kafka clients that a worker process keeps for its next ranges. For executors.

A client is kept without a partition. One that went on fetching behind the end of its range would spare the next range a
round trip, if that range were the next one of the same partition. But Spark hands tasks to whichever worker is idle:
with four partitions on two cores, 1 of 100 ranges followed the one that its worker had read before, with two partitions
42 (measured). All others would have 5,000 records and a fetch more that nobody wants, and a client that waits with a
partition takes 1 % of a core (measured).

What is fetched and not wanted is bounded by the fetch instead: a client asks for 2 MiB at a time, or for 64 KiB where
the range is expected to hold little. In a backlog of records of 100 bytes, ranges of 1,000 then cost 1.4 ms of CPU
instead of 7.9, and are there after 4 ms instead of 16 (measured). How large a topic's records are is known from the
last ones that this process has read; where nothing is known the fetch is large.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from connections.cluster import KafkaCluster
from sources.kafka.client import ArrowConsumer, Records

__all__ = ["FAST_SETTINGS", "SHORT_SETTINGS", "Client", "close_idle_clients", "is_short", "keep", "noticed", "take"]

FAST_SETTINGS: Final[Mapping[str, str]] = {
    # The defaults back off for a second whenever the queue is full (measured: 3.0 s instead of 0.8 s for 1 M records).
    "fetch.queue.backoff.ms": "2",
    "fetch.message.max.bytes": str(2 * 1024 * 1024),
    "fetch.wait.max.ms": "2",
    "queued.min.messages": "5000",
    # What bounds the memory of a reader, together with one fetch.
    "queued.max.messages.kbytes": str(32 * 1024),
}
SHORT_SETTINGS: Final[Mapping[str, str]] = {
    **FAST_SETTINGS,
    "fetch.message.max.bytes": str(64 * 1024),
    "queued.min.messages": "1000",
}
"""For ranges that hold little."""

_SHORT_BYTES = 128 * 1024
_OVERHEAD_BYTES = 20
"""Of a record, besides its value; keys are small."""
_MAX_IDLE = 4


class Client(NamedTuple):
    """What clients have in common that can stand in for each other."""

    process: int
    """A fork inherits this module, but not the clients' threads."""
    cluster: KafkaCluster
    group: str
    short: bool


_idle: list[tuple[Client, ArrowConsumer]] = []
"""Clients of this process that wait for the next task, oldest first. Many only if it serves several jobs."""
_sizes: dict[str, int] = {}
"""Topic -> bytes of a record, as last seen."""


def is_short(topic: str, offsets: int) -> bool:
    """Whether so many ``offsets`` of a topic are known to hold little."""
    size = _sizes.get(topic)
    return size is not None and offsets * size <= _SHORT_BYTES


def noticed(records: Records) -> None:
    """Remember how large the records of their topic are."""
    _sizes[records.topic] = _OVERHEAD_BYTES + records.value_bytes() // len(records)


def take(client: Client) -> ArrowConsumer | None:
    """A consumer that waits without a partition, if there is one; it is the caller's now."""
    for i, (known, consumer) in enumerate(_idle):
        if known == client:
            del _idle[i]
            return consumer
    return None


def keep(client: Client, consumer: ArrowConsumer) -> None:
    """For the next :func:`take`. ``consumer`` has no partition."""
    _idle.append((client, consumer))
    if len(_idle) > _MAX_IDLE:
        _, surplus = _idle.pop(0)
        surplus.close()


def close_idle_clients() -> None:
    """Close the clients that this process keeps for its next task."""
    while _idle:
        _, consumer = _idle.pop()
        consumer.close()
