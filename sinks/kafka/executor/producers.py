"""Producers of one Python worker process: a new producer per transaction, ids owned by the process. Executors only.

Rules (docs/protocol.md#transactional-ids): the process that holds the seat (`seats.py`) of an id is its only user. An
id serves one transaction at a time, each begun with ``init_transactions`` on a new producer. It is reused only if a
task states that its last transaction is settled as committed; after a failure or any doubt it is never reused.
Initialising a producer aborts the id's open transaction, so a mistake here would lose decided records.

From the second transaction of a process on, a thread prepares the next producer ahead. This takes about 20 ms off the
critical path. Making one takes longer than a short interval, so for a task that stays several are prepared at a time.
"""

import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from onceward.common.printable import logger
from onceward.connections.cluster import KafkaCluster
from onceward.connections.limits import SILENCE_MS
from onceward.connections.per_process import PerProcess
from onceward.sinks.kafka.client import Producer, new_producer
from onceward.sinks.kafka.errors import DeliveryError
from onceward.sinks.kafka.executor.seats import NOTHING, take_seat
from onceward.sinks.kafka.identifiers import TransactionalId
from onceward.sinks.kafka.topic_limits import TopicLimits

__all__ = [
    "IdleProducer",
    "PoolKey",
    "PreparedProducer",
    "ProducerPool",
    "batch_bytes",
    "batch_limits",
    "connected",
    "pool_for",
    "producer_settings",
]

_LOGGER = logger("onceward.kafka")
_INIT_LIMIT_S = 30.0
_AHEAD_OF_A_STAYING_TASK = 2
"""Producers. Making one takes 40 ms on two idle cores, and a task may be cut every 25."""
_STALE_AFTER_S = 300.0
"""A producer older than this is replaced: its connections or broker state may be gone, and partitions added."""

_FORCED: Mapping[str, Any] = {
    "enable.idempotence": True,
    "acks": "all",
    # As in Java: keyed joins with topics written by Java producers need the same partition for the same key.
    "partitioner": "murmur2_random",
    # A deleted topic must cause an error, not be recreated with the brokers' default settings.
    "allow.auto.create.topics": False,
}
_TUNED: Mapping[str, Any] = {
    # Lingering delays no one: a slot writes as fast as it can and then flushes, and a flush does not linger.
    "linger.ms": 50,
    "batch.num.messages": 10_000,
    "queue.buffering.max.messages": 1_000_000,
    "queue.buffering.max.kbytes": 131_072,
    "socket.nagle.disable": True,
    "retry.backoff.ms": 5,
}
"""Our defaults; the cluster's configuration overrides them."""
_TUNED_TO_STAY: Mapping[str, Any] = {**_TUNED, "linger.ms": 1}
"""The same for a task that stays. It hands over few batches, each complete, and what is sent before the cut need not be
sent after it."""
_DEFAULT_BATCH = 1_000_000
"""librdkafka's default."""


def producer_settings(cluster: KafkaCluster, batch_limits: Sequence[int], *, stays: bool = False) -> dict[str, Any]:
    """Return the settings that all producers of the sink share: idempotent, all replicas, Java's partitioner, tuned for
    batches. ``batch_limits``: bytes of a batch that its topics accept; empty if the brokers do not report it."""
    ours = _TUNED_TO_STAY if stays else _TUNED
    tuned = {key: value for key, value in ours.items() if key not in cluster.config}
    size = min((batch_bytes(cluster), *batch_limits))
    return {**tuned, **_FORCED, "batch.size": size, "message.max.bytes": record_bytes(cluster, batch_limits)}


def record_bytes(cluster: KafkaCluster, batch_limits: Sequence[int]) -> int:
    """Return the bytes of the largest record that the client takes, before compression: what the cluster's
    configuration says, else what the topics take, so that the client refuses nothing that they would not."""
    said = str(cluster.config.get("message.max.bytes", ""))
    return int(said) if said.isdigit() else max((_DEFAULT_BATCH, *batch_limits))


def batch_limits(topics: Sequence[TopicLimits]) -> tuple[int, ...]:
    """Return the limits of ``topics``, each once and ascending: the key of a pool."""
    return tuple(sorted({one.batch_bytes for one in topics if one.batch_bytes is not None}))


def batch_bytes(cluster: KafkaCluster) -> int:
    """Return the client's batch size before topic limits."""
    said = (str(cluster.config.get(key, "")) for key in ("batch.size", "message.max.bytes"))
    return min(int(text) if text.isdigit() else _DEFAULT_BATCH for text in said)


@dataclass(frozen=True, kw_only=True)
class PoolKey:
    """What producers of a pool have in common; a different value means a different pool."""

    job: str
    sink: str
    generation: int
    cluster: KafkaCluster
    transaction_timeout_ms: int
    topics: tuple[str, ...]
    """Topics to write to."""
    batch_limits: tuple[int, ...] = ()
    """Bytes; see `producer_settings`."""
    stays: bool = False
    """For a task that stays."""


@dataclass(kw_only=True)
class IdleProducer:
    """A producer without requests in flight."""

    producer: Producer
    failures: list[KafkaError] = field(default_factory=list)
    """Delivery reports of failed records; filled while the producer polls or flushes."""
    made_at: float = field(default_factory=time.monotonic)

    @property
    def usable(self) -> bool:
        try:
            self.producer.poll(0)  # lets the client report errors that occurred while idle
        except KafkaException:
            return False
        return not self.failures and time.monotonic() - self.made_at < _STALE_AFTER_S


@dataclass(kw_only=True)
class PreparedProducer(IdleProducer):
    """A producer that is initialised and has not begun a transaction."""

    id: TransactionalId


def connected(config: Mapping[str, Any], topics: Sequence[str]) -> tuple[Producer, list[KafkaError]]:
    """Return a producer that knows the partitions of ``topics``, and the list that receives its failed records' errors.
    Raises KafkaException."""
    failures: list[KafkaError] = []
    producer = new_producer(config, topics=topics, failed=failures.append, logger=_LOGGER)
    producer.load_metadata(_INIT_LIMIT_S)
    return producer, failures


class ProducerPool:
    """This process's ids and next producer for one job, sink, generation and configuration.

    A process runs one task at a time, and only that task calls `take`, `voted` and `failed`.
    """

    def __init__(self, key: PoolKey) -> None:
        self.key = key
        self._seat = take_seat(key.job, key.sink, key.generation)
        self._ahead: deque[_Making] = deque()
        self._most_ahead = _AHEAD_OF_A_STAYING_TASK if key.stays else 1
        """Producers that are prepared ahead."""
        self._retired: PreparedProducer | None = None
        self._taken = False
        """Whether `take` was called. A process that writes one slot must not leave an unused id at the brokers."""

    @property
    def worker(self) -> str:
        """The worker part of the pool's transactional ids."""
        return self._seat.worker

    def take(self, committed: Mapping[str, int]) -> PreparedProducer:
        """Return a producer for one transaction. `committed`: id suffix -> the last checkpoint whose transaction under
        that id is settled as committed. Raises DeliveryError if the brokers do not allow a transaction to begin."""
        making = self._ahead.popleft() if self._ahead else None
        prepared = making.result() if making is not None else None
        if prepared is not None and prepared.usable and self._may_use(prepared.id.n, committed):
            self._seat.strike(prepared.id.n)
        else:
            prepared = self._new(committed)
        while self._taken and prepared.producer.slow_to_make and len(self._ahead) < self._most_ahead:
            self._ahead.append(_Making(self, *self._next(committed)))
        self._taken = True
        return prepared

    def _new(self, committed: Mapping[str, int]) -> PreparedProducer:
        """Make a producer under the next id. An id whose initialising request got no answer stays struck out, because
        the request may still reach the brokers; another id is used."""
        until = time.monotonic() + _INIT_LIMIT_S
        while True:
            try:
                return self._make(self._next(committed)[0])
            except DeliveryError as error:
                cause = error.__cause__
                lost = isinstance(cause, KafkaException) and cause.args[0].code() == KafkaError._TRANSPORT
                if not lost or time.monotonic() >= until:
                    raise

    def voted(self, identifier: TransactionalId, checkpoint: int) -> None:
        """Record that the id's transaction is flushed and voted for; the id waits until that is known as committed."""
        self._seat.keep(identifier.n, checkpoint)

    def retire(self, prepared: PreparedProducer | None) -> None:
        """Drop a producer whose transaction stays open. Destroying the client takes 1 to 3 ms: in a task that stays a
        thread does it, because the driver waits for the vote."""
        slow = prepared is not None and prepared.producer.slow_to_make
        self._retired = prepared if self.key.stays and slow else None

    def failed(self) -> None:
        """Record a failed attempt: its id is struck out and never reused. Producers prepared ahead are discarded too,
        so that stale ones cannot fail one attempt after another."""
        self._ahead.clear()

    def _may_use(self, number: int, committed: Mapping[str, int]) -> bool:
        last = self._seat.last.get(number)
        # The checkpoint must be that of the last use: an older one does not cover a transaction that may be decided but
        # not yet settled. An id that is no longer offered has no receipt (`reuse.py`).
        return last == NOTHING or (last is not None and committed.get(self._id(number).suffix) == last)

    def _next(self, committed: Mapping[str, int]) -> tuple[int, int]:
        """Strike out the next id to initialise; return its number, and its last checkpoint or `NOTHING`."""
        prepared = {making.number for making in self._ahead}
        free = (one for one in tuple(self._seat.last) if one not in prepared and self._may_use(one, committed))
        number = next(free, self._seat.count)
        return number, self._seat.strike(number)

    def _id(self, number: int) -> TransactionalId:
        key = self.key
        return TransactionalId(
            job=key.job, sink=key.sink, generation=key.generation, worker=self._seat.worker, n=number
        )

    def _silence(self) -> Mapping[str, Any]:
        """The client requires a socket timeout not above the transaction timeout."""
        if "socket.timeout.ms" in self.key.cluster.config:
            return {}
        return {"socket.timeout.ms": min(SILENCE_MS, self.key.transaction_timeout_ms)}

    def _make(self, number: int) -> PreparedProducer:
        identifier = self._id(number)
        cluster = self.key.cluster
        settings: dict[str, str | int | float | bool] = {
            **producer_settings(cluster, self.key.batch_limits, stays=self.key.stays),
            **self._silence(),
            "transactional.id": str(identifier),
            "transaction.timeout.ms": self.key.transaction_timeout_ms,
        }
        try:
            producer, failures = connected(cluster.client_config(**settings), self.key.topics)
            producer.init_transactions(_INIT_LIMIT_S)
        except KafkaException as error:
            forbidden = error.args[0].code() == KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            advice = (
                f"Grant WRITE on TransactionalId prefix '{self.key.job}.' to the executors' user."
                if forbidden
                else "Check that the brokers can be reached from the executors, and their user's rights."
            )
            raise DeliveryError(
                f"No transaction can be begun under {identifier}: {error}. Nothing was written; the records are "
                f"written again. {advice}"
            ) from error
        return PreparedProducer(id=identifier, producer=producer, failures=failures)


class _Making:
    """One producer that a separate thread prepares."""

    def __init__(self, pool: ProducerPool, number: int, last: int) -> None:
        self.number = number
        self._prepared: PreparedProducer | None = None
        self._thread = threading.Thread(
            target=self._run, args=(pool, number, last), name="onceward-prepare", daemon=True
        )
        self._thread.start()

    def _run(self, pool: ProducerPool, number: int, last: int) -> None:
        pool.retire(None)
        try:
            self._prepared = pool._make(number)
            pool._seat.keep(number, last)
        except Exception:
            # `take` makes another producer and reports the cause. This id stays struck out: its initialising request
            # may reach the brokers late and would then abort what is written under the id.
            _LOGGER.info("a producer could not be made ahead", exc_info=True)

    def result(self) -> PreparedProducer | None:
        self._thread.join()
        return self._prepared


_pools: PerProcess[tuple[str, str], ProducerPool] = PerProcess()


def pool_for(key: PoolKey) -> ProducerPool:
    """Return this process's pool. Drops pools of other generations or configurations of the same job and sink."""
    pools = _pools.mine()
    pool = pools.get((key.job, key.sink))
    if pool is None or pool.key != key:
        pool = pools[(key.job, key.sink)] = ProducerPool(key)
    return pool
