"""How the cost of one checkpoint grows with its committables: acknowledge, decide, restore, settle."""

import queue
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.coordinator.documents import PARTICIPANTS, SINK, SOURCE, read, settings, settlements, written
from benchmarks.coordinator.server import served
from onceward.client.session import CoordinatorClient, Session, connect
from onceward.protocol.answers import Complete, Instruction, Trigger
from onceward.protocol.values import CheckpointId, JobName, Snapshot
from onceward.wire.values import snapshot_to_wire

__all__ = ["measure_committables"]

_LIMIT_S = 60.0


def measure_committables(directory: Path, sizes: Sequence[int], repeats: int) -> list[dict[str, Any]]:
    """One row for each number of committables; seconds are medians of ``repeats`` checkpoints."""
    rows: list[dict[str, Any]] = []
    with served(directory) as coordinator, connect(coordinator.address) as client:
        for slots in sizes:
            cpu = coordinator.cpu_seconds
            job = _Job(client, JobName(f"slots-{slots}"), slots)
            measured = [job.checkpoint() for _ in range(repeats)]
            job.leave()
            medians = {name: statistics.median(one[name] for one in measured) for name in measured[0]}
            sample = snapshot_to_wire(written(job.name, 1, 1, slots)).ByteSize()
            rows.append(
                {
                    "committables": slots,
                    "bytes": sample,
                    **{name: round(seconds, 5) for name, seconds in medians.items()},
                    "decided_worst_s": round(max(one["acknowledged_and_decided_s"] for one in measured), 5),
                    "server_cpu_s": round((coordinator.cpu_seconds - cpu) / repeats, 4),
                    "server_memory_mb": round(coordinator.memory / 1e6),
                    "repeats": repeats,
                }
            )
    return rows


class _Job:
    """A driver whose every checkpoint has the same number of committables."""

    def __init__(self, client: CoordinatorClient, name: JobName, slots: int) -> None:
        self.name = name
        self._client = client
        self._slots = slots
        self._generations = 0
        self._session, self._instructions = self._open()
        first = self._triggered()
        self._acknowledge(first, Snapshot())

    def checkpoint(self) -> dict[str, float]:
        """Acknowledge and have it decided; let a new generation find it; settle it. Seconds of each."""
        trigger = self._triggered()
        snapshot = written(self.name, int(self._session.generation), int(trigger.checkpoint), self._slots)
        begun = time.perf_counter()
        self._acknowledge(trigger, snapshot)
        acknowledged = time.perf_counter()
        self._completed(trigger.checkpoint)
        decided = time.perf_counter()
        former = self._session
        self._session, self._instructions = self._open()
        restored = time.perf_counter()
        completed = self._session.grant.completed
        assert completed is not None
        assert completed.id == trigger.checkpoint
        assert len(completed.snapshots[SINK].committables) == self._slots
        former.abandon("replaced")
        outcomes = settlements(snapshot)
        settling = time.perf_counter()
        self._session.settle(trigger.checkpoint, SINK, outcomes)
        settled = time.perf_counter()
        return {
            "acknowledged_s": acknowledged - begun,
            "acknowledged_and_decided_s": decided - begun,
            "restored_s": restored - decided,
            "settled_s": settled - settling,
        }

    def leave(self) -> None:
        self._session.abandon("measured")

    def _open(self) -> tuple[Session, "queue.Queue[Instruction]"]:
        self._generations += 1
        session = self._client.open_job(
            self.name, PARTICIPANTS, settings(0), None, driver=f"driver-{self._generations}", takeover=True
        )
        instructions: queue.Queue[Instruction] = queue.Queue()
        session.start_watch(instructions.put)
        return session, instructions

    def _acknowledge(self, trigger: Trigger, snapshot: Snapshot) -> None:
        """The source's part comes first, as in a job; what matters is the sink's."""
        source = read(int(trigger.checkpoint))
        self._session.acknowledge(trigger.checkpoint, trigger.base, {SOURCE: source, SINK: snapshot})

    def _triggered(self) -> Trigger:
        """The next checkpoint to run; what repeats is skipped."""
        while True:
            instruction = self._instructions.get(timeout=_LIMIT_S)
            if isinstance(instruction, Trigger):
                return instruction

    def _completed(self, checkpoint: CheckpointId) -> None:
        while self._instructions.get(timeout=_LIMIT_S) != Complete(checkpoint=checkpoint):
            pass
