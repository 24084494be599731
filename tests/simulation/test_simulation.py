"""Hundreds of worlds keep the promise, and a seed always gives the same world. tests/mutants shows that broken
products are caught."""

import gc
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.simulation.checker import Invariant
from tests.simulation.database import Database
from tests.simulation.fault_profile import alone
from tests.simulation.fleet import run_range
from tests.simulation.network import LinkFaults
from tests.simulation.run import digest, run_seed, transcript
from tests.simulation.scheduler import Scheduler

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_hundreds_of_worlds_keep_the_promise() -> None:
    """The first of those that `make simulate` runs."""
    counts: Counter[str] = Counter()
    endings: Counter[str] = Counter()
    for result in run_range(1, 200):
        assert result.violation is None, f"make simulate SEED={result.seed}: {result.violation}"
        counts.update(result.counts)
        endings[result.ending] += 1
    # The faults that the worlds exist for have occurred often.
    for what in ("kills", "pauses", "cuts", "lost", "duplicated", "slow"):
        assert counts[what] > 40, what
    for what in ("resumed", "stops", "orphans"):
        assert counts[what] > 10, what
    for what in ("store_failures", "returns", "elections", "led_again", "late_store"):
        assert counts[what] > 4, what
    assert counts["replays"] > 1
    assert counts["second_sinks"] > 50
    assert counts["tables"] > 15
    assert endings["finished"] > 180


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_worlds_with_staying_tasks_keep_the_promise() -> None:
    counts: Counter[str] = Counter()
    endings: Counter[str] = Counter()
    for result in run_range(1, 200, staying=True):
        assert result.violation is None, f"make simulate SEED={result.seed} STAYING=1: {result.violation}"
        counts.update(result.counts)
        endings[result.ending] += 1
    for what, least in (("kills", 80), ("cuts", 80), ("aborted", 80), ("resumed", 8), ("replays", 4)):
        assert counts[what] > least, what
    assert endings["finished"] > 180


_KILLS = {"kill_points": 0.02, "driver_kills": 2, "wishes": 0, "cancels": 0}
_LOSSES = {"transaction_timeout": 1.0, "torn": 0.3, "robberies": 0.3, "wishes": 0, "cancels": 0}


@pytest.mark.parametrize("second", ["beside", "apart", "table"])
@pytest.mark.parametrize(("faults", "seen"), [(_KILLS, "resumed"), (_LOSSES, "replays")], ids=["kills", "losses"])
def test_jobs_with_two_sinks_keep_the_promise_in_both(second: str, faults: dict[str, Any], seen: str) -> None:
    counts: Counter[str] = Counter()
    for seed in range(1, 13):
        result = run_seed(seed, **alone(second_sink=second, **faults))
        assert result.violation is None, f"seed {seed}: {result.violation}"
        counts.update(result.counts)
    assert counts["second_sinks"] == 12
    assert counts["tables"] == (12 if second == "table" else 0)
    assert counts[seen] > 2


@pytest.mark.parametrize("second", ["beside", "apart"])
@pytest.mark.parametrize(("faults", "seen"), [(_KILLS, "resumed"), (_LOSSES, "replays")], ids=["kills", "losses"])
def test_staying_tasks_that_write_to_two_sinks_keep_the_promise_in_both(
    second: str, faults: dict[str, Any], seen: str
) -> None:
    counts: Counter[str] = Counter()
    for seed in range(1, 13):
        result = run_seed(seed, **alone(staying=True, second_sink=second, **faults))
        assert result.violation is None, f"seed {seed}: {result.violation}"
        counts.update(result.counts)
    assert counts["second_sinks"] == 12
    assert counts[seen] > 2


def test_a_commit_to_a_table_that_lands_late_or_meets_another_program_is_made_once() -> None:
    counts: Counter[str] = Counter()
    answers = {"table": LinkFaults(loss=0.05, duplicate=0.1, slow=0.1)}
    sleeps = {"takeovers": 5, "driver_pauses": 3, "moves": 2}
    for seed in range(1, 7):
        for faults in (answers, sleeps):
            result = run_seed(seed, **alone(second_sink="table", fault_time=20.0, interval=0.0, **faults))
            assert result.violation is None, f"seed {seed}: {result.violation}"
            counts.update(result.counts)
    assert counts["refused_looks"] > 8
    assert counts["late_landings"] > 8


@pytest.mark.parametrize("second", ["", "beside", "apart"])
def test_staying_tasks_read_on_through_checkpoints_without_a_fault(second: str) -> None:
    calm = alone(staying=True, second_sink=second, wishes=0, cancels=0, marker_delay=0.0)
    for seed in range(1, 6):
        result, lines = transcript(seed, **calm)
        aborted = [line for line in lines if "CheckpointAborted" in line and "the job was closed" not in line]
        assert (result.counts["generations"], aborted) == (1, []), seed
        assert result.counts["completed"] > 10, seed


def test_an_older_copy_of_the_store_is_refused_or_writes_nothing_twice() -> None:
    endings: Counter[str] = Counter()
    for seed in range(1, 41):
        result = run_seed(seed, **alone(promotions=1, driver_kills=2, wishes=0, cancels=0))
        assert result.violation is None, f"seed {seed}: {result.violation}"
        endings[result.ending] += 1
    assert endings["refused by an older copy of the store"] > 2
    assert endings["finished"] > 2


_MOVES = {"standby": True, "interval": 0.0, "wishes": 0, "cancels": 0}


@pytest.mark.parametrize(
    ("faults", "seen"),
    [
        ({"late_store": 0.05}, {"refused_commits": 4, "outlived_commits": 1, "elections": 8, "led_again": 4}),
        ({"lost_locks": 6, "late_store": 0.03}, {"waited_terms": 4, "elections": 8, "led_again": 8}),
        ({"store_failures": 0.1}, {"store_failures": 30, "led_again": 30}),
    ],
    ids=["late", "without its lock", "answers lost"],
)
def test_a_leader_whose_database_fails_it_steps_down_and_lives(faults: dict[str, Any], seen: dict[str, int]) -> None:
    counts: Counter[str] = Counter()
    for seed in range(1, 21):
        result = run_seed(seed, **alone(**_MOVES, **faults))
        assert result.violation is None, f"seed {seed}: {result.violation}"
        counts.update(result.counts)
    assert counts["kills"] == 0
    for what, least in seen.items():
        assert counts[what] >= least, what


@pytest.mark.parametrize(
    ("protection", "faults"),
    [
        ("rolls_back", {"late_store": 0.05}),
        ("checks", {"lost_locks": 6}),
        ("waits", {"lost_locks": 6, "late_store": 0.05}),
    ],
)
def test_a_late_write_of_a_former_leader_is_found_without_each_protection(
    protection: str, faults: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Database, protection, False)
    results = (run_seed(seed, **alone(**_MOVES, **faults)) for seed in range(1, 21))
    violation = next(result.violation for result in results if result.violation is not None)
    assert violation.invariant is Invariant.LEAD


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
