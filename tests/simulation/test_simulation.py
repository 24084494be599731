"""Ten thousand worlds keep the promise, a seed always gives the same world, and broken products are caught."""

import gc
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from onceward.coordinator.pipeline.checkpoint_runner import CheckpointRunner
from onceward.coordinator.protocol import checkpoints
from onceward.sinks.kafka.control.settling import Settling
from onceward.sinks.kafka.executor.producers import ProducerPool
from tests.simulation.checker import Invariant
from tests.simulation.fleet import run_range
from tests.simulation.mutating import Mutant, changed, first_violation
from tests.simulation.run import digest, run_seed, transcript
from tests.simulation.scheduler import Scheduler

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_ten_thousand_worlds_keep_the_promise() -> None:
    counts: Counter[str] = Counter()
    endings: Counter[str] = Counter()
    for result in run_range(1, 10_000):
        assert result.violation is None, f"make simulate SEED={result.seed}: {result.violation}"
        counts.update(result.counts)
        endings[result.ending] += 1
    # The faults that the worlds exist for have occurred often.
    for what in ("kills", "pauses", "cuts", "lost", "duplicated", "slow", "store_failures", "resumed", "stops"):
        assert counts[what] > 500, what
    assert counts["replays"] > 100
    assert counts["orphans"] > 500
    assert counts["returns"] > 300
    assert endings["finished"] > 9_000


def test_a_hundred_worlds_keep_the_promise() -> None:
    for seed in range(1, 101):
        result = run_seed(seed)
        assert result.violation is None, f"make simulate SEED={seed}: {result.violation}"


def test_a_finished_world_is_freed() -> None:
    """Otherwise a hundred thousand worlds do not fit into memory."""
    for seed in range(1, 5):
        run_seed(seed)
    gc.collect()
    schedulers = [one for one in gc.get_objects() if type(one) is Scheduler]
    assert len(schedulers) <= 1  # the hooks keep the newest


def test_a_seed_is_its_world_in_every_process() -> None:
    """However this machine hashes text, and whatever ran before."""
    seeds = range(300, 312)
    here = [digest(transcript(seed, requests=True)[1]) for seed in seeds]
    code = (
        "from tests.simulation.run import digest, transcript\n"
        f"for seed in {list(reversed(seeds))}: print(digest(transcript(seed, requests=True)[1]))\n"
    )
    for hash_seed in ("1", "4711"):
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        assert done.stdout.split() == here[::-1]


MUTANTS: dict[str, tuple[Invariant, Mutant, dict[str, Any]]] = {
    "commit before the decision": (
        Invariant.I5,
        changed(
            CheckpointRunner._send,
            "    snapshots = {",
            "    m.committer.commit(answers.sink.committables)\n    snapshots = {",
        ),
        {},
    ),
    "abort what is not answered": (
        Invariant.I1,
        changed(
            Settling._ask,
            "case EndAnswer.AGAIN:\n                    pass",
            "case EndAnswer.AGAIN:\n                    transactions.end([handle.transaction], commit=False)",
        ),
        {},
    ),
    "take an id again before its transaction is settled": (
        Invariant.I1,
        changed(ProducerPool.voted, "self._seat.keep(identifier.n, checkpoint)", "self._seat.keep(identifier.n, 0)"),
        {},
    ),
    "complete the next checkpoint before this one is settled": (
        Invariant.I4,
        changed(checkpoints.decide, "if not state.settled:", "if False:"),
        {},
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_product_is_found_out(name: str) -> None:
    caught_by, mutant, steering = MUTANTS[name]
    found = first_violation(mutant, range(1, 600), **steering)
    assert found is not None
    assert found.violation is not None
    assert found.violation.invariant is caught_by
