"""What an open page costs the coordinator while jobs take checkpoints: its CPU with a browser, and without one."""

import asyncio
import os
import statistics
import tempfile
import time
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, async_playwright

from benchmarks.chromium import chromium
from benchmarks.coordinator.drivers import Measurements, SimulatedDriver, all_watch
from benchmarks.coordinator.jobs import SLOTS
from benchmarks.coordinator.server import ServedCoordinator
from benchmarks.coordinator.size import fill
from onceward.protocol.values import JobName

__all__ = ["measure_page", "measure_readings"]

_CHECKPOINTS = 10
"""That each job has in the store: what retention keeps by default."""
_KEPT_S = 1.2
"""A little longer than the page keeps an answer."""
_VIEWS = {"no tab": "", "jobs": "/", "one job": "/jobs/job-0"}
_SETTLING_DOWN_S = 5.0
_SPREAD_S = 10.0
"""The jobs start, and so take their checkpoints, evenly over their interval, or over this time."""
_OPENED_S = 3.0
"""A tab is open for so long before it counts: its first load is not what it costs to stay."""


def measure_page(
    directory: Path, jobs: int, intervals: Sequence[int], seconds: float, rounds: int
) -> list[dict[str, Any]]:
    """One row for each interval of the jobs' checkpoints, in seconds, and each view. A round has ``seconds`` without a
    tab, then ``seconds`` with one on each view; a cost is the difference, as a share of one core.

    With an interval of 0 nothing drives the jobs: all that the coordinator does is the page. ``seconds`` should be a
    multiple of the others, so that as many checkpoints are in each.
    """
    if chromium() is None:
        raise SystemExit("Chromium is missing; sh scripts/chromium.sh says how to install it")
    rows: list[dict[str, Any]] = []
    for interval in intervals:
        place = directory / str(interval)
        place.mkdir(mode=0o700, parents=True)
        if not interval:
            fill(place / "store.db", jobs, _CHECKPOINTS)
        with ServedCoordinator(place, web=True) as coordinator:
            rows += asyncio.run(_measure(coordinator, jobs, interval, seconds, rounds))
    return rows


def measure_readings(directory: Path, jobs: int, readings: int) -> list[dict[str, Any]]:
    """One row for each view, of jobs that nothing drives: the coordinator's CPU for one reading, all included. It
    depends little on what else runs on the machine."""
    directory.mkdir(mode=0o700, parents=True)
    fill(directory / "store.db", jobs, _CHECKPOINTS)
    rows: list[dict[str, Any]] = []
    with ServedCoordinator(directory, web=True) as coordinator:
        time.sleep(_SETTLING_DOWN_S)
        for view, address in _VIEWS.items():
            begun, cpu = time.perf_counter(), coordinator.cpu_seconds
            size = 0
            for _ in range(readings):
                time.sleep(_KEPT_S)
                if address:
                    with urllib.request.urlopen(f"http://{coordinator.page}{address}") as answer:
                        size = len(answer.read())
            used, took = coordinator.cpu_seconds - cpu, time.perf_counter() - begun
            if not address:
                idle = used / took
            else:
                cost = used - idle * took
                rows.append({"view": view, "jobs": jobs, "bytes": size, "cpu_ms": round(cost / readings * 1000, 1)})
    return rows


async def _measure(
    coordinator: ServedCoordinator, jobs: int, interval: int, seconds: float, rounds: int
) -> list[dict[str, Any]]:
    measured = Measurements()
    drivers = [
        SimulatedDriver(coordinator.address, JobName(f"job-{number}"), f"{interval}s", SLOTS, measured)
        for number in range(jobs if interval else 0)
    ]
    spread = min(interval, _SPREAD_S) / jobs
    tasks = [asyncio.create_task(_later(one, spread * number)) for number, one in enumerate(drivers)]
    shares: dict[str, list[float]] = {view: [] for view in _VIEWS}
    requests: list[Any] = []
    try:
        await all_watch(drivers, tasks)
        async with _browser() as browser:
            await asyncio.sleep(_SETTLING_DOWN_S)
            for _ in range(rounds):
                for view, address in _VIEWS.items():
                    tab = await browser.new_page(base_url=f"http://{coordinator.page}")
                    if address:
                        await tab.goto(address)
                    await asyncio.sleep(_OPENED_S)
                    tab.on("request", lambda request: requests.append(request))
                    shares[view].append(await _share(coordinator, seconds))
                    await tab.close()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    without = shares.pop("no tab")
    return [
        {
            "interval_s": interval,
            "jobs": jobs,
            "view": view,
            "rounds": rounds,
            "share_without": round(statistics.median(without), 4),
            "share_with": round(statistics.median(found), 4),
            **_costs([more - less for more, less in zip(found, without, strict=True)]),
            "requests_per_s": round(sum(one.url.endswith(_VIEWS[view]) for one in requests) / rounds / seconds, 2),
            "broken": measured.failures,
            "load_average": round(os.getloadavg()[0], 1),
        }
        for view, found in shares.items()
    ]


def _costs(shares: Sequence[float]) -> dict[str, float]:
    return {
        "cost": round(statistics.median(shares), 4),
        "least_cost": round(min(shares), 4),
        "most_cost": round(max(shares), 4),
    }


async def _share(coordinator: ServedCoordinator, seconds: float) -> float:
    """The coordinator's share of one core over the next ``seconds``."""
    cpu, begun = coordinator.cpu_seconds, time.perf_counter()
    await asyncio.sleep(seconds)
    return (coordinator.cpu_seconds - cpu) / (time.perf_counter() - begun)


@asynccontextmanager
async def _browser() -> AsyncIterator[Browser]:
    with tempfile.TemporaryDirectory() as scratch:
        async with async_playwright() as playwright:
            browser = await playwright.chromium.launch(
                executable_path=chromium(), env={**os.environ, "TMPDIR": scratch}
            )
            try:
                yield browser
            finally:
                await browser.close()


async def _later(driver: SimulatedDriver, seconds: float) -> None:
    await asyncio.sleep(seconds)
    await driver.run()
