"""What an open page costs the coordinator while jobs take checkpoints: its CPU with a browser, and without one."""

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from playwright.async_api import Browser, async_playwright

from benchmarks.chromium import chromium
from benchmarks.coordinator.drivers import Measurements, SimulatedDriver, all_watch
from benchmarks.coordinator.jobs import SLOTS
from benchmarks.coordinator.server import ServedCoordinator, served
from onceward.coordinator.protocol.values import JobName

__all__ = ["measure_page"]

_VIEWS = {"no tab": "", "jobs": "/", "one job": "/jobs/job-0"}
_SETTLING_DOWN_S = 5.0
_OPENED_S = 3.0
"""A tab is open for so long before it counts: its first load is not what it costs to stay."""


def measure_page(
    directory: Path, jobs: int, intervals: Sequence[int], seconds: float, rounds: int
) -> list[dict[str, Any]]:
    """One row for each interval of the jobs' checkpoints, in seconds, and each view. A round has ``seconds`` without a
    tab, then ``seconds`` with one on each view; a cost is the difference, as a share of one core.

    ``seconds`` should be a multiple of the intervals, so that as many checkpoints are in each.
    """
    if chromium() is None:
        raise SystemExit("Chromium is missing; sh scripts/chromium.sh says how to install it")
    rows: list[dict[str, Any]] = []
    for interval in intervals:
        with served(directory / str(interval), web=True) as coordinator:
            rows += asyncio.run(_measure(coordinator, jobs, interval, seconds, rounds))
    return rows


async def _measure(
    coordinator: ServedCoordinator, jobs: int, interval: int, seconds: float, rounds: int
) -> list[dict[str, Any]]:
    measured = Measurements()
    drivers = [
        SimulatedDriver(coordinator.address, JobName(f"job-{number}"), f"{interval}s", SLOTS, measured)
        for number in range(jobs)
    ]
    tasks = [asyncio.create_task(_later(one, interval * number / jobs)) for number, one in enumerate(drivers)]
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
