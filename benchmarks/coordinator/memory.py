"""The memory of a coordinator whose jobs have many slots: while checkpoints pass, at rest, and after a restart."""

import queue
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.coordinator.documents import PARTICIPANTS, SINK, SOURCE, read, settings, settlements, written
from benchmarks.coordinator.server import ServedCoordinator, served
from onceward.client.session import CoordinatorClient, Session, connect
from onceward.protocol.answers import Complete, Instruction, Trigger
from onceward.protocol.values import JobName
from onceward.wire.values import snapshot_to_wire

__all__ = ["measure_memory"]

_LIMIT_S = 300.0
_AT_ONCE = 1
"""Jobs that acknowledge at the same time."""


def measure_memory(directory: Path, jobs: int, slots: int, checkpoints: int) -> list[dict[str, Any]]:
    """One row for each moment; megabytes are resident ones."""
    with served(directory) as coordinator:
        rows = [_row("started", coordinator, 0.0)]
        with connect(coordinator.address, patience="10min") as client:
            begun = time.perf_counter()
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                drivers = [_Driver(client, JobName(f"job-{number}"), slots) for number in range(jobs)]
                for _ in range(checkpoints):
                    took = list(pool.map(_Driver.checkpoint, drivers))
            rows.append(_row(f"{checkpoints} checkpoints", coordinator, time.perf_counter() - begun))
            for driver in drivers:
                driver.leave()
        coordinator.kill()
        rows.append(_row("started again", coordinator, coordinator.start()))
        with connect(coordinator.address, patience="10min") as client:
            begun = time.perf_counter()
            for number in range(jobs):
                _Driver(client, JobName(f"job-{number}"), slots).leave()
            rows.append(_row("all jobs restored", coordinator, time.perf_counter() - begun))
    sample = snapshot_to_wire(written(JobName("job-1"), 1, 1, slots)).ByteSize()
    shape = {"jobs": jobs, "slots": slots, "checkpoint_mb": round(sample / 1e6, 1)}
    return [{**row, **shape, "decided_s": round(statistics.median(took), 2)} for row in rows]


def _row(moment: str, coordinator: ServedCoordinator, took_s: float) -> dict[str, Any]:
    return {
        "moment": moment,
        "took_s": round(took_s, 1),
        "memory_mb": round(coordinator.memory / 1e6),
        "peak_mb": round(coordinator.peak_memory / 1e6),
    }


class _Driver:
    def __init__(self, client: CoordinatorClient, job: JobName, slots: int) -> None:
        self._job, self._slots = job, slots
        self._session: Session = client.open_job(
            job, PARTICIPANTS, settings(0, "30s"), None, driver="driver", takeover=True
        )
        self._instructions: queue.Queue[Instruction] = queue.Queue()
        self._session.start_watch(self._instructions.put)

    def checkpoint(self) -> float:
        """Acknowledge one, wait for the decision, settle it. Returns the seconds until it is decided."""
        while not isinstance(trigger := self._instructions.get(timeout=_LIMIT_S), Trigger):
            pass
        checkpoint = trigger.checkpoint
        snapshot = written(self._job, int(self._session.generation), int(checkpoint), self._slots)
        begun = time.perf_counter()
        answers = self._session.acknowledge(checkpoint, trigger.base, {SOURCE: read(int(checkpoint)), SINK: snapshot})
        while self._instructions.get(timeout=_LIMIT_S) != Complete(checkpoint=checkpoint):
            pass
        took = time.perf_counter() - begun
        assert answers, "all are taken"
        self._session.settle(checkpoint, SINK, settlements(snapshot))
        return took

    def leave(self) -> None:
        self._session.let_go()
