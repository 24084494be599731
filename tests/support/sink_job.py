"""A Kafka sink driven without Spark: this process writes the slots, as an executor would."""

import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import pyarrow as pa

from onceward import KafkaCluster, KafkaSink
from onceward.connectors.interfaces import JobContext, writer_options
from onceward.connectors.slots import SlotWriter
from onceward.connectors.tasks import CheckpointTask, Vote
from onceward.driver.origins import slot_origins
from onceward.executor.slots import Attempt
from onceward.protocol.committing import PreCommitted
from onceward.protocol.values import Author, CheckpointId, Claim, Committable, Generation, JobName
from onceward.sinks.kafka.client import Producer
from onceward.sinks.kafka.control.clock import Clock
from onceward.sinks.kafka.control.committables import KafkaCommittable
from onceward.sinks.kafka.control.control_plane import ControlPlane
from onceward.sinks.kafka.control.system import KafkaSystem
from onceward.sinks.kafka.control.transactions import Transactions, TransactionView
from onceward.sinks.kafka.executor.producers import PoolKey, ProducerPool
from tests.support.slots import write_slot
from tests.support.waiting import wait_until

QUICK = Clock(wait=lambda seconds: time.sleep(min(seconds, 0.02)))
"""A clock with short waits, so that repeated checks are not seconds apart."""


def batch(*records: bytes | tuple[bytes | None, bytes | None] | None) -> pa.RecordBatch:
    """A batch of values, or of (key, value)."""
    pairs = [record if isinstance(record, tuple) else (None, record) for record in records]
    return pa.RecordBatch.from_arrays(
        [pa.array([key for key, _ in pairs], pa.binary()), pa.array([value for _, value in pairs], pa.binary())],
        ["key", "value"],
    )


class SinkJob:
    """One job with one open sink, at a given generation."""

    def __init__(
        self, servers: str, job: str, *, generation: int = 1, cluster: KafkaCluster | None = None, **sink: Any
    ):
        self.job = JobName(job)
        self.servers = servers
        self.generation = generation
        self.cluster = cluster or KafkaCluster(servers)
        context = JobContext(job=self.job, checkpoint_timeout=timedelta(minutes=2))
        self.sink = KafkaSink(self.cluster, **sink).connect(context)
        self.findings = self.sink.preflight()
        self.sink.begin_generation(Generation(generation))
        self.own = self.sink.system()
        """The committer that the driver uses: it holds the claim."""
        self.control = ControlPlane(self.cluster)
        self.transactions = Transactions(self.control)

    def __enter__(self) -> "SinkJob":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.sink.close()
        self.control.close()

    @property
    def author(self) -> Author:
        """The author of what this generation and all before it have pre-committed."""
        return Author(job=self.job, participant=self.sink.participant.name, generations=range(1, self.generation + 1))

    def system(self, clock: Clock = QUICK) -> KafkaSystem:
        return KafkaSystem(self.control, clock=clock)

    def task(self, checkpoint: int) -> CheckpointTask:
        return CheckpointTask(
            job=self.job,
            generation=self.generation,
            checkpoint=checkpoint,
            splits=(),
            columns=(),
            sinks={self.sink.participant.name: writer_options(self.sink)},
        )

    def write(self, checkpoint: int, *batches: pa.RecordBatch, slot: int = 0, writer: SlotWriter | None = None) -> Vote:
        return self.write_all(checkpoint, batches, slot=slot, writer=writer)

    def write_all(
        self, checkpoint: int, batches: Iterable[pa.RecordBatch], *, slot: int = 0, writer: SlotWriter | None = None
    ) -> Vote:
        attempt = Attempt(task=self.task(checkpoint), slot=slot, number=100 + slot)
        return write_slot(writer or self.sink.write(), attempt, batches)

    def pre_commit(
        self, checkpoint: int, votes: Sequence[Vote], unsettled: Iterable[Committable] = ()
    ) -> tuple[Committable, ...]:
        """Pre-commit, and end what else the job has open."""
        made = self.voted(checkpoint, votes)
        self.sink.system().sweep(self.job, keep=(*made.committables, *unsettled), known=(made,))
        return made.committables

    def voted(self, checkpoint: int, votes: Sequence[Vote]) -> PreCommitted:
        """Pre-commit, and end nothing."""
        inputs = [[{"topic": "in", "partition": vote.slot}] for vote in votes]
        return self.sink.pre_commit(CheckpointId(checkpoint), votes, slot_origins(inputs, str), leftovers=True)

    def prepared(self, checkpoint: int, *slots: Sequence[bytes]) -> tuple[Committable, ...]:
        """Pre-commit one checkpoint with the given values in each slot."""
        votes = [self.write(checkpoint, batch(*values), slot=slot) for slot, values in enumerate(slots)]
        return self.pre_commit(checkpoint, votes)

    def read_claim(self) -> Claim | None:
        return self.own.read_claim(self.job)

    def take_claim(self, claim: Claim, seen: Claim | None) -> None:
        self.own.take_claim(self.job, claim, () if seen is None else (seen,))

    def wait_for_claim(self, claim: Claim) -> None:
        """Wait until ``claim`` is read: the brokers confirm a claim when they decide it, and show it a moment later."""
        wait_until(lambda: self.read_claim() == claim, f"{claim} is visible")

    def view(self, committable: Committable) -> TransactionView:
        name = KafkaCommittable.of(committable).transaction.id
        return self.transactions.describe([name])[name]

    def open_transaction(self, topic: str, *, n: int = 0, timeout_ms: int = 60_000) -> tuple[str, Producer]:
        """Leave a transaction open under an id of this job, as a losing attempt does. Keep the producer alive."""
        pool = ProducerPool(
            PoolKey(
                job=self.job,
                sink="sink",
                generation=self.generation,
                cluster=self.cluster,
                transaction_timeout_ms=timeout_ms,
                topics=(topic,),
            )
        )
        prepared = pool.take({})
        prepared.producer.begin_transaction()
        left = pa.record_batch([pa.array([b"left open"])], ["value"])
        prepared.producer.produce(topic, left, lambda: prepared.producer.poll(1))
        assert prepared.producer.flush(10) == 0
        return str(prepared.id), prepared.producer


def counting(batches: Iterable[pa.RecordBatch], seen: list[int]) -> Iterator[pa.RecordBatch]:
    for each in batches:
        seen.append(each.num_rows)
        yield each
