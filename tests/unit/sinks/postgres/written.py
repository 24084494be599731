"""A PostgreSQL sink as its driver and its tasks use it, without Spark."""

import itertools
import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pyarrow as pa

from onceward import PostgresSink
from onceward.common.links import Links
from onceward.connectors.interfaces import Finding, JobContext
from onceward.connectors.slots import OpenSlot, SlotContext
from onceward.connectors.tasks import CheckpointTask, Vote
from onceward.driver.origins import slot_origins
from onceward.protocol.values import (
    Author,
    CheckpointId,
    Claim,
    Committable,
    Generation,
    JobName,
    ParticipantName,
    Settlement,
)
from onceward.sinks.postgres.driver.session import PostgresSinkSession

__all__ = ["JOB", "Run", "running"]

JOB = JobName("orders-job")
_ATTEMPTS = itertools.count(1)


class Run:
    """One generation of the job, whose claim it takes if it is asked to."""

    def __init__(self, sink: PostgresSink, generation: int = 1) -> None:
        self.generation = generation
        self.links = Links()
        context = JobContext(job=JOB, checkpoint_timeout=timedelta(minutes=2), links=self.links)
        self.session: PostgresSinkSession = sink.connect(context)
        self.findings: Sequence[Finding] = self.session.preflight()
        self.system = self.session.system()
        self.author = Author(job=JOB, participant=ParticipantName("sink"), generations=range(1, generation + 1))

    def begin(self) -> "Run":
        self.session.begin_generation(Generation(self.generation))
        return self

    def claim(self, completed: int = 0) -> Claim:
        return Claim(
            store_id="store",
            generation=Generation(self.generation),
            completed=CheckpointId(completed),
            holder=f"driver {self.generation}",
        )

    def takes(self, *seen: Claim) -> "Run":
        self.begin()
        self.system.take_claim(JOB, self.claim(), seen)
        return self

    def open(self, checkpoint: int = 1, slot: int = 0) -> OpenSlot:
        task = CheckpointTask(
            job=JOB, generation=self.generation, checkpoint=checkpoint, splits=(), columns=(), sinks={"sink": {}}
        )
        writer = pickle.loads(pickle.dumps(self.session.write()))
        opened: OpenSlot = writer.open(SlotContext(task=task, sink="sink", slot=slot, attempt=next(_ATTEMPTS)))
        return opened

    def write(self, batch: pa.RecordBatch, *, checkpoint: int = 1, slot: int = 0) -> Vote:
        opened = self.open(checkpoint, slot)
        try:
            opened.write(batch)
            return opened.finish()
        except BaseException:
            opened.abandon()
            raise

    def pre_commit(self, *votes: Vote, checkpoint: int = 1) -> tuple[Committable, ...]:
        origins = slot_origins([[{"slot": vote.slot}] for vote in votes], str)
        return self.session.pre_commit(CheckpointId(checkpoint), votes, origins, leftovers=True).committables

    def prepared(self, *batches: pa.RecordBatch, checkpoint: int = 1) -> tuple[Committable, ...]:
        votes = [self.write(batch, checkpoint=checkpoint, slot=slot) for slot, batch in enumerate(batches)]
        return self.pre_commit(*votes, checkpoint=checkpoint)

    def commit(self, made: Sequence[Committable]) -> Settlement:
        (settlement,) = self.system.commit(self.author, made, give_up=lambda: True)
        return settlement


@contextmanager
def running(dsn: str, table: str = "orders", *, generation: int = 1, **options: Any) -> Iterator[Run]:
    run = Run(PostgresSink(dsn, table, **options), generation)
    try:
        yield run
    finally:
        run.session.close()
