"""The report: what is shown, and what is written under ``build/crash`` (report.json, report.md)."""

import json
import statistics
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from platform import python_version

from onceward.common.killpoints import KillPoint
from tests.support.schedules import Kill, Outcome, Schedule

__all__ = ["LIMITS", "Row", "limits", "missing_points", "numbers", "rows", "versions", "write"]


@dataclass(frozen=True, kw_only=True)
class Row:
    """All kills of one kind of process at one place."""

    process: str
    place: str
    kills: int
    not_reached: int
    outcomes: Mapping[str, int]
    """The schedules of these kills, by outcome."""
    median_s: float | None
    worst_s: float | None
    """From the kill to the next settled checkpoint, excluding kills that another kill followed first."""


def rows(schedules: Sequence[Schedule]) -> Iterator[Row]:
    """Kill points in the order of the registry, by process; then all other places."""
    found: dict[tuple[str, str], list[tuple[Kill, Schedule]]] = defaultdict(list)
    for schedule in schedules:
        for kill in schedule.kills:
            found[kill.process, kill.place].append((kill, schedule))
    order = {point.value: number for number, point in enumerate(KillPoint)}

    def place(key: tuple[str, str]) -> tuple[int, str, str]:
        return order.get(key[1].partition(":")[0], len(order)), key[0], key[1]

    for process, where in sorted(found, key=place):
        those = found[process, where]
        times = [kill.recovery_s for kill, _ in those if kill.recovery_s is not None]
        outcomes: dict[str, int] = defaultdict(int)
        for outcome in {id(schedule): schedule.outcome.value for _, schedule in those}.values():
            outcomes[outcome] += 1
        yield Row(
            process=process,
            place=where,
            kills=sum(kill.reached for kill, _ in those),
            not_reached=sum(not kill.reached for kill, _ in those),
            outcomes=dict(outcomes),
            median_s=statistics.median(times) if times else None,
            worst_s=max(times, default=None),
        )


def missing_points(schedules: Sequence[Schedule]) -> list[str]:
    """Kill points of the registry at which no process died."""
    reached = {kill.place.partition(":")[0] for schedule in schedules for kill in schedule.kills if kill.reached}
    return [point.value for point in KillPoint if point.value not in reached]


def numbers(schedules: Sequence[Schedule]) -> dict[str, object]:
    """Totals, and recovery times by process, from the kill and from the restart of what was killed."""
    kills = [kill for schedule in schedules for kill in schedule.kills if kill.reached]
    recovery: dict[str, object] = {}
    for process in sorted({kill.process for kill in kills}):
        own = [kill for kill in kills if kill.process == process and kill.recovered_at]
        recovery[process] = {
            "kills": sum(kill.process == process for kill in kills),
            FROM_KILL: _spread([kill.recovered_at - kill.at for kill in own]),
            FROM_RETURN: _spread([max(0.0, k.recovered_at - k.back_at) for k in own if k.back_at]),
        }
    return {
        "schedules": len(schedules),
        "kills": len(kills),
        "not reached": sum(len(schedule.not_reached) for schedule in schedules),
        "outcomes": {outcome.value: sum(s.outcome is outcome for s in schedules) for outcome in Outcome},
        "records": sum(schedule.records for schedule in schedules),
        "checkpoints": sum(schedule.checkpoints for schedule in schedules),
        "generations": sum(schedule.generations for schedule in schedules),
        "transactions resumed": sum(schedule.resumed for schedule in schedules),
        "transactions replayed": sum(schedule.replayed for schedule in schedules),
        "transactions aborted": sum(schedule.aborted for schedule in schedules),
        "transactions without markers": sum(schedule.unmarked for schedule in schedules),
        "recovery_s": recovery,
    }


FROM_KILL, FROM_RETURN = "from the kill", "from its return"
LIMITS = {
    "driver with Spark": (FROM_RETURN, 15.0),
    "driver with Spark, local-cluster": (FROM_RETURN, 15.0),
    "driver with Spark, standalone": (FROM_RETURN, 15.0),
    "coordinator": (FROM_RETURN, 3.0),
    "broker": (FROM_KILL, 15.0),
}
"""Process -> (from when, seconds within which the next checkpoint should be settled on two quiet cores)."""


def limits(schedules: Sequence[Schedule]) -> Iterator[str]:
    """Compare recovery times with their limits, as text. They depend on the machine and do not decide the result."""
    for process, (since, limit) in LIMITS.items():
        kills = [k for s in schedules for k in s.kills if k.process == process and k.recovered_at and k.back_at]
        times = {FROM_KILL: [k.recovered_at - k.at for k in kills]}
        if since == FROM_RETURN:
            times[since] = [k.recovered_at - k.back_at for k in kills]
        if kills:
            reported = (
                f"{statistics.median(t):.1f} s (median), {max(t):.1f} s (worst) {when}" for when, t in times.items()
            )
            within = sum(time <= limit for time in times[since])
            yield f"{process}: next checkpoint {'; '.join(reported)}: {within} of {len(kills)} within {limit:.0f} s"


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that take part."""
    names = ("onceward", "pyspark", "confluent-kafka", "kafka-python", "grpcio", "sqlalchemy")
    return {"python": python_version(), **{name: version(name) for name in names}}


def write(directory: Path, schedules: Sequence[Schedule], *, seed: int, seconds: float, passed: bool) -> None:
    """Write both files. Called after every schedule, so that an interrupted suite leaves its results."""
    totals = {**numbers(schedules), "seed": seed, "seconds": round(seconds), "passed": passed, "versions": versions()}
    content = {"totals": totals, "schedules": [asdict(schedule) for schedule in schedules]}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "report.json").write_text(json.dumps(content, indent=1))
    (directory / "report.md").write_text("\n".join(_markdown(schedules, totals)) + "\n")


def _spread(times: Sequence[float]) -> dict[str, float | int] | None:
    if not times:
        return None
    return {"measured": len(times), "median": round(statistics.median(times), 2), "worst": round(max(times), 2)}


def _markdown(schedules: Sequence[Schedule], totals: Mapping[str, object]) -> Iterator[str]:
    yield "# make crash"
    yield ""
    yield from (f"- {name}: {json.dumps(value)}" for name, value in totals.items() if name != "recovery_s")
    yield from (f"- {line}" for line in limits(schedules))
    recovery = totals["recovery_s"]
    assert isinstance(recovery, dict)
    yield from (f"- recovery of {process}: {json.dumps(times)}" for process, times in recovery.items())
    yield from (
        "",
        "| place | process | kills | not reached | outcomes | median s | worst s |",
        "|---|---|---|---|---|---|---|",
    )
    for row in rows(schedules):
        outcomes = ", ".join(f"{count} {name}" for name, count in row.outcomes.items())
        yield (
            f"| {row.place} | {row.process} | {row.kills} | {row.not_reached or ''} | {outcomes} "
            f"| {_seconds(row.median_s)} | {_seconds(row.worst_s)} |"
        )
    yield from (
        "",
        "| schedule | outcome | kills | resumed | replayed | aborted | without markers | generations | checkpoints "
        "| records | s |",
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    for one in schedules:
        yield (
            f"| {one.name} | {one.outcome.value} | {len(one.kills)} | {one.resumed} | {one.replayed} | {one.aborted} "
            f"| {one.unmarked} | {one.generations} | {one.checkpoints} | {one.records} | {one.seconds:.0f} |"
        )


def _seconds(time: float | None) -> str:
    return "" if time is None else f"{time:.1f}"
