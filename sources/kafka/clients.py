"""The Kafka clients that a worker process keeps for its next ranges. For executors.

A client is kept without a partition. One that went on fetching behind the end of its range would spare the next range a
round trip, if that range were the next one of the same partition. But Spark hands tasks to whichever worker is idle: of
a copy's ranges, four partitions in two tasks on two cores, 24 of 56 followed the one that their worker had read before
(measured), and more workers make it fewer. All others would have 10,000 records and a fetch more that nobody wants, and
a client that waits with a partition takes 1 % of a core (measured).

What is fetched and not wanted is bounded by the fetch instead: a client asks for 2 MiB at a time, and for less where
its range is expected to hold less than a few of those (docs/performance.md has what that brings). How large a topic's
records are is known from the last ones that this process has read; where nothing is known the fetch is large.
"""

from typing import Final, NamedTuple

from onceward.connections.cluster import KafkaCluster
from onceward.connections.per_process import PerProcess
from onceward.sources.kafka.client import ArrowConsumer, Records

__all__ = ["FETCHES", "LARGE", "Client", "Fetch", "close_idle_clients", "fetch_for", "keep", "noticed", "take"]

_KIB = 1024


class Fetch(NamedTuple):
    """How much of a partition a client asks for."""

    size: int
    """Bytes at a time."""
    ahead: int
    """Records; as long as fewer wait in the client it asks for more."""
    ranges: int
    """Fetched together. One alone takes some 3 ms until its first record is there, and so does each further one if it
    has to wait for the one before. The more there are, the more of what lies behind the ends of the first is fetched
    while the others are read."""
    most: float
    """Bytes of the longest range that it is for."""

    def settings(self) -> dict[str, str]:
        """librdkafka's."""
        return {
            # The defaults back off for a second whenever the queue is full (measured: 3.0 s instead of 0.8 s for 1 M
            # records).
            "fetch.queue.backoff.ms": "2",
            "fetch.message.max.bytes": str(self.size),
            "fetch.wait.max.ms": "2",
            "queued.min.messages": str(self.ahead),
            # What bounds the memory of a reader, together with one fetch.
            "queued.max.messages.kbytes": str(32 * 1024),
        }


LARGE: Final = Fetch(size=2048 * _KIB, ahead=10_000, ranges=8, most=float("inf"))
FETCHES: Final = (
    Fetch(size=64 * _KIB, ahead=1_000, ranges=32, most=128 * _KIB),
    Fetch(size=256 * _KIB, ahead=1_000, ranges=32, most=1024 * _KIB),
    LARGE,
)
"""By the ranges that they are for."""

_OVERHEAD_BYTES = 20
"""Of a record, besides its value; keys are small."""
_MAX_IDLE = 6


class Client(NamedTuple):
    """What clients have in common that can stand in for each other."""

    cluster: KafkaCluster
    group: str
    fetch: Fetch


_idle: PerProcess[Client, ArrowConsumer] = PerProcess()
"""Those that wait for the next task, the one that waits longest first. Many only if a process serves several jobs."""
_sizes: dict[str, int] = {}
"""Topic -> bytes of a record, as last seen."""


def fetch_for(topic: str, offsets: int) -> Fetch:
    """How to fetch a range of so many ``offsets`` of a topic."""
    size = _sizes.get(topic)
    if size is None:
        return LARGE
    return next(fetch for fetch in FETCHES if offsets * size <= fetch.most)


def noticed(records: Records) -> None:
    """Remember how large the records of their topic are."""
    _sizes[records.topic] = _OVERHEAD_BYTES + records.value_bytes() // len(records)


def take(client: Client) -> ArrowConsumer | None:
    """A consumer that waits without a partition, if there is one; it is the caller's now."""
    return _idle.mine().pop(client, None)


def keep(client: Client, consumer: ArrowConsumer) -> None:
    """For the next :func:`take`. ``consumer`` has no partition."""
    idle = _idle.mine()
    surplus = idle.pop(client, None)
    idle[client] = consumer
    if surplus is None and len(idle) > _MAX_IDLE:
        surplus = idle.pop(next(iter(idle)))
    if surplus is not None:
        surplus.close()


def close_idle_clients() -> None:
    """Close the clients that this process keeps for its next task."""
    idle = _idle.mine()
    while idle:
        idle.popitem()[1].close()
