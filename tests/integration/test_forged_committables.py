"""A driver acknowledges a transaction that is not its own, and goes silent. The coordinator has rights at the brokers
that the driver lacks, so it must not end the transaction for it."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from queue import SimpleQueue

import pytest
from confluent_kafka import Producer

from onceward.client.operators import OperatorClient
from onceward.client.session import connect
from onceward.connections.cluster import KafkaCluster
from onceward.coordinator.store.store import Store
from onceward.protocol import facts
from onceward.protocol.answers import Instruction, Trigger, Verdict
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.status import JobStatus, Transition
from onceward.protocol.values import (
    CheckpointId,
    Committable,
    Document,
    Generation,
    JobName,
    Participant,
    ParticipantName,
    Role,
    Snapshot,
)
from onceward.sinks.kafka.control.committables import KafkaCommittable, TopicRecords
from onceward.sinks.kafka.control.control_plane import ControlPlane
from onceward.sinks.kafka.control.transactions import State, Transaction, Transactions, TransactionView
from onceward.wire.rows import JobSummary
from tests.support.processes import CLUSTER, Process, Processes, free_address
from tests.support.stored_jobs import StoredJob
from tests.support.topics import Topics
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kill, pytest.mark.timeout(300)]

EVIL = JobName("evil")
SOURCE = Participant(name=ParticipantName("source"), role=Role.SOURCE, kind="kafka")
SINK = Participant(name=ParticipantName("sink"), role=Role.SINK, kind="kafka")
SETTINGS = CheckpointSettings(interval="100ms", stream_grace="200ms", lease="1s", orphan_grace="1s")
POSITIONS = Snapshot(positions=Document(kind="test", version=1, body={"next": 1}))

VICTIMS = (
    "payments-service-7",
    "payments.sink.1.0123abcd.0",
    "evil.another-sink.1.0123abcd.0",
    "evil.sink.2.0123abcd.0",
)
"""Of another program, of another job, of another sink, of another generation. The last is of the job itself, so a sweep
may abort it; nothing may commit it."""


class Victim:
    """A transaction of another program, open with one record."""

    def __init__(self, topics: Topics, name: str) -> None:
        self.topic = topics.create("payments")
        self.name = name
        self._producer = Producer(
            {
                "bootstrap.servers": topics.servers,
                "log_level": 0,
                "transactional.id": name,
                "transaction.timeout.ms": 600000,
            }
        )
        self._producer.init_transactions(30)
        self._producer.begin_transaction()
        self._producer.produce(self.topic, b"a payment", partition=0)
        assert self._producer.flush(30) == 0

    def forged(self, control: ControlPlane) -> Committable:
        """Return a committable that names this transaction, as any peer can make it."""
        view = self.view(control)
        assert view.state is State.ONGOING
        return KafkaCommittable(
            slot=0,
            checkpoint=1,
            cluster_name=CLUSTER,
            cluster_id=control.cluster_id(),
            transaction=Transaction(id=self.name, producer_id=view.producer_id, epoch=view.epoch, version=5),
            token="token",
            topics={self.topic: TopicRecords(records=1, partitions=(0,))},
            records=1,
            bytes=9,
            inputs=[],
            pre_committed=datetime.now(UTC),
        ).to_committable()

    def view(self, control: ControlPlane) -> TransactionView:
        return Transactions(control).describe([self.name])[self.name]

    def abort(self) -> None:
        """Abort it as its own program does; this fails if anything has ended or fenced it."""
        self._producer.abort_transaction(30)


@pytest.fixture
def control(topics: Topics) -> Iterator[ControlPlane]:
    with closing(ControlPlane(KafkaCluster(topics.servers))) as control:
        yield control


@contextmanager
def coordinator(directory: Path, servers: str) -> Iterator[tuple[str, Process]]:
    """``onceward serve --clusters``, at an address."""
    with Processes(directory) as processes:
        address = free_address()
        yield address, processes.start_coordinator(address, {}, cluster=servers)


def settled_for_evil(address: str, process: Process) -> JobSummary:
    """Wait until the coordinator has done what it does for the job without a driver."""
    with OperatorClient(address, patience="60s") as client:

        def job() -> JobSummary:
            return next(found for found in client.jobs() if found.job == EVIL)

        done = ("late tasks", "leaves it as it is")
        wait_until(lambda: any(said in job().orphan for said in done), f"the coordinator is done:\n{process.tail()}")
        return job()


@pytest.mark.parametrize("name", VICTIMS)
def test_a_driver_cannot_have_the_transaction_of_another_ended(
    topics: Topics, control: ControlPlane, tmp_path: Path, name: str
) -> None:
    victim = Victim(topics, name)
    with coordinator(tmp_path, topics.servers) as (address, process), connect(address) as client:
        session = client.open_job(EVIL, (SOURCE, SINK), SETTINGS, None, driver="evil-driver")
        instructions: SimpleQueue[Instruction] = SimpleQueue()
        session.start_watch(instructions.put)
        while not isinstance(trigger := instructions.get(timeout=60), Trigger):
            pass
        snapshots = {SOURCE.name: POSITIONS, SINK.name: Snapshot(committables=(victim.forged(control),), records=1)}
        _, answer = session.acknowledge(trigger.checkpoint, trigger.base, snapshots)
        session.let_go()
        found = settled_for_evil(address, process)
        assert answer.verdict is Verdict.INVALID
        assert name in answer.detail
        assert (found.generation, found.last_completed) == (2, 0)
    if not name.startswith(f"{EVIL}."):
        victim.abort()
    assert topics.values(victim.topic) == []


def store_forged(path: Path, forged: Committable) -> None:
    """Leave the job as an earlier release did that took any committable: completed, not settled, without a driver."""
    store = Store.open(f"sqlite:///{path}")
    job = StoredJob(store, EVIL)
    granted = facts.GenerationGranted(
        generation=Generation(1),
        driver="evil-driver",
        participants=(SOURCE, SINK),
        settings=SETTINGS,
        first_id=CheckpointId(0),
    )
    job.write(granted, facts.StatusChanged(transition=Transition.OPENED, status=JobStatus.RUNNING, detail=""))
    job.trigger()
    snapshots = {SOURCE.name: POSITIONS, SINK.name: Snapshot(committables=(forged,), records=1)}
    job.write(
        facts.CheckpointCompleted(checkpoint=CheckpointId(1), snapshots=snapshots, settled=False, ran_s=0, decided_s=0)
    )
    job.end()
    store.close()


@pytest.mark.parametrize("name", VICTIMS[:3])
def test_a_forged_committable_in_the_store_is_not_followed(
    topics: Topics, control: ControlPlane, tmp_path: Path, name: str
) -> None:
    victim = Victim(topics, name)
    store_forged(tmp_path / "coordinator.db", victim.forged(control))
    with coordinator(tmp_path, topics.servers) as (address, process):
        found = settled_for_evil(address, process)
        assert not found.settled
        assert f"names transaction '{name}'" in found.orphan
    assert victim.view(control).state is State.ONGOING
    victim.abort()
    assert topics.values(victim.topic) == []
