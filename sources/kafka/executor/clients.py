"""The Kafka clients that a worker process keeps for its next ranges. For executors.

A client is kept without a partition. One that kept fetching past the end of its range would save a round trip if the
next range continued the same partition. But Spark gives tasks to whichever worker is idle: of a copy's ranges, with
four partitions in two tasks on two cores, 24 of 56 continued the one that their worker had read before (measured), and
more workers make it fewer. All others would cost 10,000 records and one fetch that are not needed, and a client that
waits with a partition takes 1 % of a core (measured).

Instead, the fetch size bounds what is fetched and not needed: a client fetches 2 MiB at a time, and less if its range
is expected to hold less than a few of those (benchmarks/RESULTS.md has the effect). The size of a topic's records is
known from the last ones that this process has read; if it is unknown, nothing is fetched ahead of a short range.
"""

import time
from math import inf
from typing import Final, NamedTuple

from onceward.connections.cluster import KafkaCluster
from onceward.connections.per_process import PerProcess
from onceward.sources.kafka.client import Consumer, Records

__all__ = [
    "CAREFUL",
    "FETCHES",
    "FIRST_LOOK",
    "LARGE",
    "Client",
    "Fetch",
    "close_idle_clients",
    "fetch_for",
    "held_back",
    "keep",
    "noticed",
    "take",
    "take_held_back",
]

_KIB = 1024


class Fetch(NamedTuple):
    """How much of a partition a client fetches."""

    size: int
    """Bytes per fetch."""
    ahead: int
    """Records; the client fetches more while fewer are queued."""
    ranges: int
    """Number of ranges fetched together. A range takes some 3 ms until its first record arrives, and so does each
    further one that waits for the previous one. With more ranges, more data past the ends of the first ones is fetched
    while the others are read."""
    most: float
    """Bytes of the largest range that it serves."""
    patience_ms: int | None = None
    """For an answer; None = as all clients."""

    def settings(self) -> dict[str, str]:
        """Return librdkafka's settings."""
        return {
            # The defaults back off for a second whenever the queue is full (measured: 3.0 s instead of 0.8 s for 1 M
            # records).
            "fetch.queue.backoff.ms": "2",
            "fetch.message.max.bytes": str(self.size),
            "fetch.wait.max.ms": "2",
            "queued.min.messages": str(self.ahead),
            # With the size of one fetch, this bounds the memory of a reader.
            "queued.max.messages.kbytes": str(32 * 1024),
        }


LARGE: Final = Fetch(size=2048 * _KIB, ahead=10_000, ranges=8, most=float("inf"))
FETCHES: Final = (
    Fetch(size=64 * _KIB, ahead=1_000, ranges=32, most=128 * _KIB),
    Fetch(size=256 * _KIB, ahead=1_000, ranges=32, most=1024 * _KIB),
    LARGE,
)
"""By increasing size of the ranges they serve."""
CAREFUL: Final = Fetch(size=64 * _KIB, ahead=1, ranges=1, most=float("inf"), patience_ms=60_000)
"""While brokers hold fetches back for a quota. They send whole batches, whatever the size: nothing is fetched ahead of
the records that are taken. A held back request is answered only after the time that the quota asks for."""

FIRST_LOOK: Final = Fetch(size=256 * _KIB, ahead=1, ranges=8, most=float("inf"))
"""For a short range of records of unknown size: were it large ones, all that is fetched ahead would be dropped."""

_FEW = 1_000
"""Offsets of a short range."""

_CAREFUL_S = 60.0
"""For so long after a broker has held a fetch back."""

_OVERHEAD_BYTES = 20
"""Bytes of a record besides its value; keys are small."""
_MAX_IDLE = 6


class Client(NamedTuple):
    """What interchangeable clients have in common."""

    cluster: KafkaCluster
    group: str
    fetch: Fetch


_idle: PerProcess[Client, Consumer] = PerProcess()
"""Clients waiting for the next task, longest wait first. There are many only if a process serves several jobs."""
_sizes: dict[str, int] = {}
"""Topic -> bytes of a record, as last measured."""


_held_s: dict[str, float] = {}
"""Bootstrap servers -> for how long their brokers held fetches back in the current task."""
_held_at: dict[str, float] = {}
"""Bootstrap servers -> when they did so last (monotonic)."""


def held_back(cluster: KafkaCluster, seconds: float) -> None:
    """Note that a broker holds back a fetch."""
    servers = cluster.bootstrap_servers
    _held_s[servers] = _held_s.get(servers, 0.0) + seconds
    _held_at[servers] = time.monotonic()


def take_held_back(cluster: KafkaCluster) -> float:
    """Return the seconds noted since the last call."""
    return _held_s.pop(cluster.bootstrap_servers, 0.0)


def fetch_for(topic: str, offsets: int, cluster: KafkaCluster | None = None) -> Fetch:
    """Return how to fetch a range of ``offsets`` offsets of a topic."""
    if cluster is not None and time.monotonic() - _held_at.get(cluster.bootstrap_servers, -inf) < _CAREFUL_S:
        return CAREFUL
    size = _sizes.get(topic)
    if size is None:
        return FIRST_LOOK if offsets <= _FEW else LARGE
    return next(fetch for fetch in FETCHES if offsets * size <= fetch.most)


def noticed(records: Records) -> None:
    """Remember the record size of their topic."""
    _sizes[records.topic] = _OVERHEAD_BYTES + records.value_bytes() // len(records)


def take(client: Client) -> Consumer | None:
    """Return an idle consumer without a partition, if there is one. The caller owns it."""
    return _idle.mine().pop(client, None)


def keep(client: Client, consumer: Consumer) -> None:
    """Keep ``consumer`` for the next :func:`take`. It must have no partition."""
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
