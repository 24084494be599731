"""``make crash``: kill every process at every point and report the results (tests/crash/README.md)."""

import argparse
import shutil
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from onceward.dev.postgres.binaries import is_offered
from onceward.dev.toxiproxy import ToxiproxyError, toxiproxy_server
from tests.crash import parallel, report
from tests.crash.suite import PARTS, Plan
from tests.support.schedules import Schedule

_BUILD = Path(__file__).resolve().parents[2] / "build" / "crash"


def main() -> int:
    """Return 0 only when every schedule was good and, if all parts ran, a process died at every kill point."""
    parser = argparse.ArgumentParser(prog="make crash", description="every process dies everywhere")
    parser.add_argument("--seed", type=int, default=1, help="of the first random schedule")
    parser.add_argument("--schedules", type=int, default=60, help="random schedules")
    parser.add_argument("--part", action="append", choices=sorted(PARTS), help="only these parts")
    parser.add_argument("--build", type=Path, default=_BUILD, help="where report, logs, stores and histories go")
    arguments = parser.parse_args()
    parts = arguments.part or list(PARTS)
    if "disk" in parts and shutil.which("strace") is None:
        parser.error("the part `disk` needs strace, which is not installed; nothing was started")
    if "leaders" in parts and not is_offered():
        parser.error("the part `leaders` needs a PostgreSQL, and there is none to fetch; nothing was started")
    if "leaders" in parts:
        try:
            toxiproxy_server()
        except ToxiproxyError as error:
            parser.error(f"the part `leaders` needs toxiproxy; nothing was started. {error}")
    build: Path = arguments.build.resolve()  # child processes run in other directories
    run = build / "run"
    shutil.rmtree(run, ignore_errors=True)
    run.mkdir(parents=True)
    console = Console(highlight=False, soft_wrap=True)
    plan = Plan(directory=run, seed=arguments.seed, schedules=arguments.schedules)
    schedules: list[Schedule] = []
    began = time.monotonic()
    for schedule in parallel.run(parts, plan):
        schedules.append(schedule)
        seconds = time.monotonic() - began
        console.print(_line(schedule, schedules, seconds))
        report.write(build, schedules, seed=arguments.seed, seconds=seconds, passed=_passed(schedules, parts))
    passed = _passed(schedules, parts)
    report.write(build, schedules, seed=arguments.seed, seconds=time.monotonic() - began, passed=passed)
    _show(console, schedules)
    if set(parts) == set(PARTS):
        for point in report.missing_points(schedules):
            console.print(f"no process died at {point}", style="red")
    console.print(f"{'PASS' if passed else 'FAIL'}: the report is {build / 'report.md'}", style="bold")
    return 0 if passed else 1


def _passed(schedules: list[Schedule], parts: list[str]) -> bool:
    everywhere = set(parts) != set(PARTS) or not report.missing_points(schedules)
    return bool(schedules) and everywhere and all(schedule.good for schedule in schedules)


def _line(one: Schedule, schedules: list[Schedule], seconds: float) -> str:
    kills = sum(kill.reached for schedule in schedules for kill in schedule.kills)
    colour = "green" if one.good else "red"
    lines = [
        f"[{colour}]{one.outcome.value:<7}[/{colour}] {one.part}: {one.name}: {len(one.kills)} kills, "
        f"{one.checkpoints} checkpoints, {one.records} records, {one.seconds:.0f} s",
        f"        transactions: {one.resumed} resumed, {one.replayed} replayed, {one.aborted} aborted, {one.unmarked} "
        f"without markers; "
        f"so far {kills} kills in {seconds / 60:.1f} min",
    ]
    lines += [f"    not reached: {kill.process} at {kill.place}" for kill in one.not_reached]
    lines += [f"    {line}".replace("[", "\\[") for reason in one.reasons for line in reason.splitlines()]
    return "\n".join(lines)


def _show(console: Console, schedules: list[Schedule]) -> None:
    table = Table("place", "process", "kills", "outcomes of their schedules", "median s", "worst s")
    for row in report.rows(schedules):
        outcomes = ", ".join(f"{count} {name}" for name, count in row.outcomes.items())
        missed = f" ({row.not_reached} not reached)" if row.not_reached else ""
        times = ("" if t is None else f"{t:.1f}" for t in (row.median_s, row.worst_s))
        table.add_row(row.place, row.process, f"{row.kills}{missed}", outcomes, *times)
    console.print(table)
    for name, value in report.numbers(schedules).items():
        console.print(f"{name}: {value}")
    for line in report.limits(schedules):
        console.print(line)


if __name__ == "__main__":
    sys.exit(main())
