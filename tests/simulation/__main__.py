"""``python -m tests.simulation --seed N`` replays a world line by line; ``--seeds K --start S`` runs many."""

import argparse
import sys
import time
from collections import Counter
from itertools import chain

from tests.simulation.fleet import run_range
from tests.simulation.run import Result, digest, transcript

LEGEND = """\
One line per event: virtual seconds since the beginning, who, what.
  driver-N            the N-th driver process; its lines are the job's journal
  driver-N/worker-M   a Python worker process of its executors
  coordinator-N       the N-th coordinator process, on the same store
  store               a fact that became durable
  kafka               a marker that ends a transaction in one output partition, or something that befell the brokers
  reader              a record that a read_committed reader of the output sees now: <input partition>-<offset>
  kafka other, reader other   the same of a second cluster
  table, reader table   a state of the table, or something that befell it; a record of it that readers see now
  network, world      links that are cut and mended; the end of the faults
"""
_SHOWN = 20
SUMMARY = (
    ("events", "events"),
    ("requests", "requests to brokers"),
    ("kills", "kills"),
    ("restarts", "restarts"),
    ("pauses", "processes stopped and continued"),
    ("elections", "coordinators that replaced a silent leader"),
    ("led_again", "coordinators that stepped down and led again"),
    ("lost_locks", "locks of the lead lost"),
    ("late_store", "messages and commits of the database that were late"),
    ("ended_sessions", "silent sessions that the database ended"),
    ("refused_commits", "commits that came after their session's end"),
    ("outlived_commits", "commits whose answers came after their session's end"),
    ("waited_terms", "terms that waited for a write of the last one"),
    ("promotions", "older copies that replaced the store"),
    ("cuts", "links cut"),
    ("lost", "messages lost"),
    ("duplicated", "messages doubled"),
    ("slow", "messages delayed"),
    ("skipped_markers", "markers skipped"),
    ("store_failures", "writes of the store failed"),
    ("generations", "generations"),
    ("completed", "checkpoints completed"),
    ("settled", "checkpoints settled"),
    ("aborted", "checkpoints aborted"),
    ("resumed", "transactions resumed by a later generation"),
    ("orphans", "jobs taken by the coordinator"),
    ("replays", "replays of lost slots begun"),
    ("visible", "records visible"),
    ("second_sinks", "jobs with two sinks"),
    ("tables", "jobs with a table"),
    ("refused_looks", "commits to a table refused because it had changed"),
    ("late_landings", "commits and files of a table that came after their process had given up"),
    ("fences", "lost checkpoints of a table fenced"),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="replay this one, with a transcript")
    parser.add_argument(
        "--requests", action="store_true", help="with --seed: also every request to the brokers and the table"
    )
    parser.add_argument("--staying", action="store_true", help="with --seed: the job's tasks stay")
    parser.add_argument("--seeds", type=int, default=10_000, help="how many; a quarter again with staying tasks")
    parser.add_argument("--start", type=int, default=1, help="the first one")
    parser.add_argument("--jobs", type=int, default=None, help="processes; all cores by default")
    given = parser.parse_args()
    if given.seed is not None:
        return _replay(given.seed, requests=given.requests, staying=given.staying)
    return _many(given.start, given.seeds, given.jobs)


def _replay(seed: int, *, requests: bool, staying: bool) -> int:
    result, lines = transcript(seed, requests=requests, staying=staying)
    sys.stdout.write(LEGEND + "\n" + "\n".join(lines) + "\n\n")
    sys.stdout.write(f"seed {seed}: {_verdict(result)}   transcript {digest(lines)[:16]}\n")
    return 0 if result.violation is None else 1


def _many(start: int, seeds: int, jobs: int | None) -> int:
    begun = reported = time.monotonic()
    counts: Counter[str] = Counter()
    endings: Counter[str] = Counter()
    failed: list[Result] = []
    again = -(-seeds // 4)
    worlds = chain(run_range(start, seeds, jobs), run_range(start, again, jobs, staying=True))
    for done, result in enumerate(worlds, start=1):
        counts.update(result.counts)
        endings[result.ending] += 1
        if result.violation is not None:
            failed.append(result)
            if len(failed) <= _SHOWN:
                sys.stdout.write(f"{_name(result)}: {_verdict(result)}\n")
        if time.monotonic() - reported >= 5.0:
            reported = time.monotonic()
            sys.stderr.write(f"{done:,} of {seeds + again:,} worlds, {done / (reported - begun):,.0f} per second\n")
    seconds = time.monotonic() - begun
    sys.stdout.write(f"{seeds:,} seeds from {start}, {again:,} of them again with staying tasks, in {seconds:.0f} s\n")
    for key, name in SUMMARY:
        sys.stdout.write(f"  {counts[key]:>14,} {name}\n")
    for ending, count in sorted(endings.items()):
        sys.stdout.write(f"  {count:>14,} jobs ended: {ending or 'not at all'}\n")
    if failed:
        names = ", ".join(_name(result) for result in failed[:50])
        sys.stdout.write(f"FAILED: {len(failed)} worlds: {names}\n  replay one: make simulate {_name(failed[0])}\n")
        return 1
    sys.stdout.write("passed\n")
    return 0


def _name(result: Result) -> str:
    """The world, as `make simulate` takes it."""
    return f"SEED={result.seed}{' STAYING=1' if result.staying else ''}"


def _verdict(result: Result) -> str:
    if result.violation is None:
        return result.ending
    return f"VIOLATED {result.violation.invariant.value}: {result.violation.text}"


if __name__ == "__main__":
    raise SystemExit(main())
