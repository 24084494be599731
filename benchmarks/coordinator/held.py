"""What it takes to hold many jobs that do nothing, and how soon all are back after a crash of the coordinator."""

import asyncio
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.coordinator.drivers import Measurements, SimulatedDriver, all_watch
from benchmarks.coordinator.server import ServedCoordinator
from benchmarks.coordinator.size import fill
from onceward.protocol.values import JobName

__all__ = ["measure_held"]

INTERVAL = "1h"
_CHECKPOINTS = 10
"""That each job has in the store: what retention keeps by default."""
_OPENING_S = 5.0
_SETTLING_DOWN_S = 5.0


def measure_held(
    directory: Path, numbers: Sequence[int], seconds: float, *, warm_up: float = _SETTLING_DOWN_S
) -> list[dict[str, Any]]:
    """One row for each number of jobs. The coordinator is killed once, after ``seconds`` of rest, and started again."""
    rows: list[dict[str, Any]] = []
    for jobs in numbers:
        place = directory / str(jobs)
        place.mkdir(mode=0o700, parents=True)
        fill(place / "store.db", jobs, _CHECKPOINTS)
        with ServedCoordinator(place) as coordinator:
            rows.append(asyncio.run(_measure(coordinator, jobs, seconds, warm_up)))
    return rows


async def _measure(coordinator: ServedCoordinator, jobs: int, seconds: float, warm_up: float) -> dict[str, Any]:
    measured = Measurements()
    empty = coordinator.memory
    drivers = [
        SimulatedDriver(coordinator.address, JobName(f"job-{number}"), INTERVAL, 0, measured) for number in range(jobs)
    ]
    begun = time.perf_counter()
    tasks = [asyncio.create_task(_later(driver, random.uniform(0, jobs / 1000 * _OPENING_S))) for driver in drivers]
    try:
        await all_watch(drivers, tasks)
        opened = time.perf_counter() - begun
        await asyncio.sleep(warm_up)
        cpu, begun = coordinator.cpu_seconds, time.perf_counter()
        await asyncio.sleep(seconds)
        share = (coordinator.cpu_seconds - cpu) / (time.perf_counter() - begun)
        memory, broken = coordinator.memory, measured.failures
        coordinator.kill()
        while any(driver.watching.is_set() for driver in drivers):
            await asyncio.sleep(0.01)
        begun = time.perf_counter()
        started = await asyncio.to_thread(coordinator.start)
        await all_watch(drivers, tasks)
        back = time.perf_counter() - begun
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return {
        "jobs": jobs,
        "opened_within_s": round(opened, 2),
        "server_memory_mb": round(memory / 1e6),
        "memory_kb_per_job": round((memory - empty) / 1e3 / jobs, 1),
        "server_cpu_share": round(share, 4),
        "broken": broken,
        "start_s": round(started, 2),
        "all_back_s": round(back, 2),
        "store_mb": round(coordinator.store.stat().st_size / 1e6, 1),
        "load_average": round(os.getloadavg()[0], 1),
    }


async def _later(driver: SimulatedDriver, seconds: float) -> None:
    await asyncio.sleep(seconds)
    await driver.run()
