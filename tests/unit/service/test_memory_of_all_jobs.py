"""The checkpoints of all jobs take a bounded part of the coordinator's memory, and each peer or job leaves some."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import pytest

from onceward.coordinator.service.documents import Checkers
from onceward.coordinator.service.engine import CommitBatch, Engine
from onceward.coordinator.service.memory import usable_memory
from onceward.coordinator.store.store import Store
from onceward.protocol.answers import Answer, Decision, Verdict
from onceward.protocol.durable import Durable
from onceward.protocol.events import Acknowledge, Decline, Event, OpenJob, Watch
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import CheckpointId, JobName, Snapshot
from tests.support.scripted import SINK, SOURCE, positions, slots

MEMORY = 2_000_000
"""Half of it is for checkpoints."""


@dataclass
class Coordinator:
    store: Store
    calling: str = ""
    now: float = 100.0
    engine: Engine = field(init=False)

    def __post_init__(self) -> None:
        self.engine = Engine(
            self.store,
            clock=lambda: self.now,
            wall=lambda: datetime(2026, 1, 2, tzinfo=UTC),
            checkers=Checkers({}),
            calling=lambda: self.calling,
            memory=MEMORY,
        )

    def send(self, job: str, event: Event, size: int = 0) -> Answer:
        answer = self.engine.work_out(batch := CommitBatch(), JobName(job), event, size=size)
        if batch.steps:
            self.engine.keep(batch)
        self.engine.publish(batch)
        return answer

    def acknowledge(self, peer: str, job: str, size: int) -> Answer:
        """Of the source, which is one of two: the checkpoint stays undecided. Opens the job if it is new."""
        self.calling = peer
        if JobName(job) not in self.engine.jobs():
            settings = CheckpointSettings(interval=0, num_retained=2, tolerable_failed_checkpoints=100)
            opening = OpenJob(now=self.now, driver="d", participants=(SOURCE, SINK), settings=settings, claim=None)
            assert self.send(job, opening).verdict is Verdict.ACCEPTED
            self.send(job, Watch(now=self.now, generation=self._durable(job).generation))
        return self.send(job, self._said(job, positions(1)), size)

    def complete(self, job: str, size: int = 0) -> None:
        assert self.send(job, self._said(job, slots(int(self._pending(job)), 0)), size).verdict is Verdict.ACCEPTED

    def decline(self, job: str) -> None:
        durable, pending = self._durable(job), self._pending(job)
        event = Decline(
            now=self.now, generation=durable.generation, checkpoint=pending, participant=SINK.name, reason="no room"
        )
        assert self.send(job, event).decision is Decision.ABORTED

    def _said(self, job: str, snapshot: Snapshot) -> Acknowledge:
        durable = self._durable(job)
        return Acknowledge(
            now=self.now,
            generation=durable.generation,
            checkpoint=self._pending(job),
            participant=SOURCE.name if snapshot.positions is not None else SINK.name,
            base=durable.base,
            snapshot=snapshot,
        )

    def _pending(self, job: str) -> CheckpointId:
        pending = self._durable(job).pending
        assert pending is not None
        return pending.id

    def _durable(self, job: str) -> Durable:
        return self.engine.state(JobName(job)).durable


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    with closing(Store.open(f"sqlite:///{tmp_path / 'store.db'}")) as store:
        yield Coordinator(store)


def taken(coordinator: Coordinator, peer: str, jobs: list[str], size: int) -> list[str]:
    """The jobs whose acknowledgement was taken."""
    return [job for job in jobs if coordinator.acknowledge(peer, job, size).verdict is Verdict.ACCEPTED]


def test_a_peer_with_many_jobs_leaves_room_for_another(coordinator: Coordinator) -> None:
    many = [f"a-{number}" for number in range(20)]
    assert taken(coordinator, "alice", many, 100_000) == many[:8], "four fifths of a million"
    assert taken(coordinator, "bob", [f"b-{number}" for number in range(20)], 20_000) == [f"b-{n}" for n in range(8)]
    assert coordinator.acknowledge("carol", "c", 20_000).verdict is Verdict.ACCEPTED
    refused = coordinator.acknowledge("alice", "a-19", 100_000)
    assert refused.verdict is Verdict.REFUSED
    assert "peer alice would then hold 900000 of the 1000000" in refused.detail
    assert "none is lost" in refused.detail


def test_without_names_of_peers_a_large_job_leaves_room_for_others(coordinator: Coordinator) -> None:
    assert taken(coordinator, "", ["large", "small"], 750_000) == ["large"]
    assert taken(coordinator, "", ["small", "another"], 80_000) == ["small", "another"]


def test_small_checkpoints_are_always_taken(coordinator: Coordinator) -> None:
    jobs = [f"a-{number}" for number in range(50)]
    for number in range(50):
        coordinator.acknowledge("", f"large-{number}", 700_000 >> number // 3)
    assert taken(coordinator, "alice", jobs, 8_000) == jobs


def test_what_a_job_no_longer_holds_is_room_for_the_next(coordinator: Coordinator) -> None:
    for checkpoint in range(3):
        assert coordinator.acknowledge("alice", "a", 300_000).verdict is Verdict.ACCEPTED, checkpoint
        coordinator.complete("a", 50_000)
    assert coordinator.acknowledge("alice", "b", 500_000).verdict is Verdict.REFUSED, "350,000 are the completed one"
    coordinator.decline("b")
    assert coordinator.acknowledge("alice", "b", 400_000).verdict is Verdict.ACCEPTED
    coordinator.decline("b")
    assert coordinator.acknowledge("alice", "a", 400_000).verdict is Verdict.ACCEPTED, "the declined one is gone"
    assert coordinator.acknowledge("alice", "a", 400_000).verdict is Verdict.DUPLICATE, "and takes nothing twice"


def test_what_a_store_holds_counts_after_a_restart(coordinator: Coordinator) -> None:
    long = slots(1, 400)
    coordinator.acknowledge("alice", "a", 1_000)
    coordinator.send("a", coordinator._said("a", long), 100_000)
    again = Coordinator(coordinator.store)
    assert again.acknowledge("alice", "b", 720_000).verdict is Verdict.REFUSED, (
        "400 slots take 250 bytes each, and text"
    )
    assert again.acknowledge("alice", "b", 600_000).verdict is Verdict.ACCEPTED


def test_the_memory_is_that_of_the_machine_or_the_least_limit_of_its_groups(tmp_path: Path) -> None:
    machine = usable_memory(tmp_path)
    assert machine > 1 << 26

    def limit(group: str, text: str) -> int:
        (place := tmp_path / "sys/fs/cgroup" / group).parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        return usable_memory(tmp_path)

    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("9:name=systemd:/\n4:cpu,memory:/docker/one\n0::/kube/pod/one\n")
    assert limit("kube/pod/one/memory.max", "max\n") == machine
    assert limit("kube/pod/memory.max", "30000000\n") == 30_000_000
    assert limit("memory.max", "20000000\n") == 20_000_000, "a container sees its own group as the topmost"
    assert limit("memory/docker/one/memory.limit_in_bytes", "9000000\n") == 9_000_000, "version 1"
    assert limit("memory/memory.limit_in_bytes", "8000000\n") == 8_000_000
