"""How long decisions take while many jobs take checkpoints."""

import asyncio
import os
import random
import sqlite3
import statistics
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.coordinator.drivers import Measurements, SimulatedDriver, all_watch
from benchmarks.coordinator.server import ServedCoordinator, served
from benchmarks.percentiles import percentile
from onceward.dev.postgres.server import LocalPostgres
from onceward.protocol.values import JobName

__all__ = [
    "measure_jobs",
    "measure_participants",
    "measure_slow_disk",
    "measure_stores",
    "milliseconds",
    "watched_lags",
]

INTERVAL_S = 1.0
SLOTS = 4
_WARM_UP_S = 3.0


def measure_jobs(
    directory: Path, numbers: Sequence[int], seconds: float, *, warm_up: float = _WARM_UP_S
) -> list[dict[str, Any]]:
    """One row for each number of jobs, beginning evenly over one interval, on a coordinator of its own."""
    rows: list[dict[str, Any]] = []
    for jobs in numbers:
        with served(directory / str(jobs)) as coordinator:
            rows.append(asyncio.run(_measure(coordinator, jobs, seconds, warm_up)))
    return rows


def measure_stores(
    directory: Path, numbers: Sequence[int], seconds: float, *, warm_up: float = _WARM_UP_S
) -> list[dict[str, Any]]:
    """Two rows for each number of jobs: on SQLite, then on a PostgreSQL of its own on the same disk, with the ratio."""
    rows: list[dict[str, Any]] = []
    for jobs in numbers:
        with served(directory / f"sqlite-{jobs}") as coordinator:
            file = asyncio.run(_measure(coordinator, jobs, seconds, warm_up))
        with (
            LocalPostgres() as postgres,
            served(directory / f"postgresql-{jobs}", store_url=postgres.url) as coordinator,
        ):
            server = asyncio.run(_measure(coordinator, jobs, seconds, warm_up))
        ratios = {
            f"{name}_ratio": round(server[name] / file[name], 2) for name in ("decision_p50_ms", "decision_p99_ms")
        }
        rows += [
            {"store": "sqlite", **file, **dict.fromkeys(ratios, 1.0)},
            {"store": "postgresql", **server, **ratios},
        ]
    return rows


def measure_participants(
    directory: Path, jobs: int, settings_s: Sequence[tuple[float, float]], seconds: float
) -> list[dict[str, Any]]:
    """One row for each interval and lease, of jobs with a source and four sinks that have a committable each. Each job
    begins at another moment of the first interval; measured are two intervals, and ``seconds`` at least."""
    rows: list[dict[str, Any]] = []
    for interval_s, lease_s in settings_s:
        with served(directory / f"{interval_s:g}-{lease_s:g}") as coordinator:
            measured = _measure(
                coordinator,
                jobs,
                max(seconds, 2 * interval_s),
                _WARM_UP_S,
                interval_s=interval_s,
                slots=1,
                sinks=4,
                lease=f"{lease_s:g}s",
            )
            given = {"interval_s": interval_s, "lease_s": lease_s, "participants": 5 * jobs}
            rows.append({**given, **asyncio.run(measured)})
    return rows


def measure_slow_disk(
    directory: Path, jobs: int, delays_ms: Sequence[float], seconds: float, *, warm_up: float = _WARM_UP_S
) -> list[dict[str, Any]]:
    """One row for each delay of a commit; in the end the coordinator is killed, so that it removes nothing more."""
    rows: list[dict[str, Any]] = []
    for delay_ms in delays_ms:
        with served(directory / f"{delay_ms:g}", delay_ms=delay_ms) as coordinator:
            measured = asyncio.run(_measure(coordinator, jobs, seconds, warm_up))
            coordinator.kill()
            most = _most_checkpoints(coordinator.store)
        rows.append({"delay_ms": delay_ms, **measured, "most_checkpoints_of_a_job": most})
    return rows


def _most_checkpoints(store: Path) -> int:
    """Retention keeps 10 of each job, and removes others within about 11 s."""
    with closing(sqlite3.connect(store)) as connection:
        (most,) = connection.execute(
            "SELECT max(number) FROM (SELECT count(*) AS number FROM checkpoints GROUP BY job)"
        ).fetchone()
    return int(most)


async def _measure(
    coordinator: ServedCoordinator,
    jobs: int,
    seconds: float,
    warm_up: float,
    *,
    interval_s: float = INTERVAL_S,
    slots: int = SLOTS,
    sinks: int = 1,
    lease: str = "10s",
) -> dict[str, Any]:
    measured = Measurements()
    drivers = [
        SimulatedDriver(
            coordinator.address, JobName(f"job-{number}"), f"{interval_s:g}s", slots, measured, sinks=sinks, lease=lease
        )
        for number in range(jobs)
    ]
    tasks = [asyncio.create_task(_later(driver, random.uniform(0, interval_s))) for driver in drivers]
    try:
        await all_watch(drivers, tasks)
        await asyncio.sleep(warm_up)
        measured.clear()
        cpu, begun = coordinator.cpu_seconds, time.perf_counter()
        lags = await watched_lags(seconds)
        took = time.perf_counter() - begun
        cpu = coordinator.cpu_seconds - cpu
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    problems = [one for one in ended if one is not None and not isinstance(one, asyncio.CancelledError)]
    if problems:
        raise SystemExit(f"a simulated driver failed: {problems[0]!r}")
    return {
        "jobs": jobs,
        "seconds": round(took, 1),
        "decisions_per_s": round(len(measured.decisions) / took, 1),
        **milliseconds("decision", measured.decisions),
        **milliseconds("acknowledge", measured.acknowledgements),
        **milliseconds("settle", measured.settlements),
        **milliseconds("load_process_lag", lags),
        "server_cpu_share": round(cpu / took, 3),
        "server_memory_mb": round(coordinator.memory / 1e6),
        "broken": measured.failures,
        "load_average": round(os.getloadavg()[0], 1),
    }


async def _later(driver: SimulatedDriver, seconds: float) -> None:
    await asyncio.sleep(seconds)
    await driver.run()


async def watched_lags(seconds: float) -> list[float]:
    """How late this process itself is woken, sampled for so long: it is part of everything that it measures."""
    lags, end = [], time.perf_counter() + seconds
    while (now := time.perf_counter()) < end:
        await asyncio.sleep(0.02)
        lags.append(max(time.perf_counter() - now - 0.02, 0.0))
    return lags


def milliseconds(name: str, values: Sequence[float]) -> dict[str, float]:
    return {
        f"{name}_p50_ms": round(statistics.median(values) * 1000, 2) if values else float("nan"),
        f"{name}_p99_ms": round(percentile(values, 0.99) * 1000, 2),
        f"{name}_max_ms": round(max(values, default=float("nan")) * 1000, 2),
    }
