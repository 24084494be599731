"""How long decisions take beside people who list, by turns in one run."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc

from benchmarks.coordinator.drivers import Measurements, SimulatedDriver, all_watch
from benchmarks.coordinator.jobs import milliseconds, watched_lags
from benchmarks.coordinator.server import ServedCoordinator, served
from onceward.dev.postgres.server import LocalPostgres
from onceward.protocol.values import JobName
from onceward.wire.v1 import operators_pb2 as pb

__all__ = ["measure_listings"]

_METHOD = f"/{pb.DESCRIPTOR.services_by_name['OperatorService'].full_name}/ListHistory"
_INTERVAL = "200ms"
_SLOTS = 4
_CHANNELS = 8
_WARM_UP_S = 15.0
"""Until each job has a long history."""
_OPENING_S = 2.0
"""How long the connections and calls take that are opened at the same moment."""


def measure_listings(directory: Path, jobs: int, calls: int, seconds: float, rounds: int) -> list[dict[str, Any]]:
    """Measure two rows on a PostgreSQL of its own: without listings, and beside the open calls that list a history."""
    with LocalPostgres() as postgres, served(directory / "listings", store_url=postgres.url) as coordinator:
        return asyncio.run(_measure(coordinator, jobs, calls, seconds, rounds))


async def _measure(
    coordinator: ServedCoordinator, jobs: int, calls: int, seconds: float, rounds: int
) -> list[dict[str, Any]]:
    measured = Measurements()
    names = [JobName(f"job-{number}") for number in range(jobs)]
    drivers = [SimulatedDriver(coordinator.address, name, _INTERVAL, _SLOTS, measured) for name in names]
    tasks = [asyncio.create_task(driver.run()) for driver in drivers]
    decisions: dict[int, list[float]] = {0: [], calls: []}
    lags: dict[int, list[float]] = {0: [], calls: []}
    listed = 0
    try:
        await all_watch(drivers, tasks)
        await asyncio.sleep(_WARM_UP_S)
        for _ in range(rounds):
            for beside in (0, calls):
                async with _listing(coordinator.address, names[0], beside) as count:
                    await asyncio.sleep(_OPENING_S)
                    measured.clear()
                    count[0] = 0
                    lags[beside] += await watched_lags(seconds)
                    decisions[beside] += measured.decisions
                    listed += count[0]
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return [
        {
            "open_listings": beside,
            "decisions": len(decisions[beside]),
            **milliseconds("decision", decisions[beside]),
            **milliseconds("load_process_lag", lags[beside]),
            "listed_per_s": round(listed / (rounds * seconds)) if beside else 0,
        }
        for beside in (0, calls)
    ]


@contextlib.asynccontextmanager
async def _listing(address: str, job: JobName, calls: int) -> AsyncIterator[list[int]]:
    """Keep the given number of calls open, and count the answers."""
    count = [0]
    request = pb.ListHistoryRequest(job=job, limit=1_000).SerializeToString()

    async def repeat(channel: grpc.aio.Channel) -> None:
        call: Any = channel.unary_unary(_METHOD)
        while True:
            try:
                await call(request, timeout=60.0)
                count[0] += 1
            except grpc.aio.AioRpcError:
                await asyncio.sleep(random.uniform(0.05, 0.2))

    async with contextlib.AsyncExitStack() as stack:
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [
            await stack.enter_async_context(grpc.aio.insecure_channel(address, options=options))
            for _ in range(_CHANNELS)
        ]
        tasks = [asyncio.create_task(repeat(channels[number % _CHANNELS])) for number in range(calls)]
        try:
            yield count
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
