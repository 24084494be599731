"""Runs many seeds on all cores."""

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.simulation.run import Result, run_seed

__all__ = ["run_range"]

_CHUNK = 25


def run_range(start: int, seeds: int, jobs: int | None = None, *, staying: bool = False) -> Iterator[Result]:
    """Run ``seeds`` seeds, the first of them ``start``, on ``jobs`` processes (one per core). Yields results as they
    arrive. ``staying``: with tasks that stay."""
    world = partial(run_seed, staying=staying)
    numbers = range(start, start + seeds)
    processes = min(jobs or os.cpu_count() or 1, max(1, seeds // _CHUNK))
    if processes == 1:
        yield from map(world, numbers)
        return
    # Not fork: the parent may have threads (pytest, gRPC), and forking with threads can hang.
    # Not multiprocessing.Pool: that waits forever for a process that was killed.
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(world, numbers, chunksize=_CHUNK)
