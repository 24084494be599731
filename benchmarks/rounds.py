"""The rounds: each round runs every system once per workload, in turn, so that disturbances affect all alike."""

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from functools import partial
from typing import Any, Protocol, TypeVar

from confluent_kafka import KafkaException

from benchmarks.errors import BenchmarkError, NotOfferedError, SetUpError
from benchmarks.systems import Kind, System
from benchmarks.workloads import Workload

__all__ = ["Run", "Runner", "measured", "planned", "run_rounds", "set_up"]

Run = dict[str, Any]
"""``workload``, ``system``, ``round`` (from 1), and ``figures``, or ``failed`` or ``not_offered`` with the reason."""


W = TypeVar("W", bound=StrEnum)
Taken = TypeVar("Taken", bound=StrEnum, contravariant=True)


class Runner(Protocol[Taken]):
    """Measures one run."""

    def run(self, system: System, workload: Taken) -> dict[str, Any]:
        """Return the figures. Raises BenchmarkError and NotOfferedError."""


def set_up(systems: Sequence[System], say: Callable[[str], None]) -> dict[str, str | None]:
    """Set the systems up; return, by system, why it cannot be measured, or None."""
    reasons: dict[str, str | None] = {}
    for system in systems:
        say(f"setting up {system.name}")
        try:
            system.set_up()
            reasons[system.name] = None
        except SetUpError as error:
            reasons[system.name] = str(error)
            say(f"{system.name} cannot be measured: {error}")
    return reasons


def planned(systems: Sequence[System], workloads: Sequence[W], rounds: int) -> Iterator[tuple[W, int, System]]:
    """Yield the order A B A B: all systems of a workload in sequence, repeated for each round."""
    for workload in workloads:
        for number in range(1, rounds + 1):
            for system in systems:
                if workload is not Workload.CYCLE or system.kind is Kind.OURS:
                    yield workload, number, system


def run_rounds(
    runner: Runner[W],
    systems: Sequence[System],
    workloads: Sequence[W],
    rounds: int,
    say: Callable[[str], None],
) -> Iterator[Run]:
    """Yield all runs, each as it ends. A failed run is a row with its reason, and the others continue."""
    not_offered: set[tuple[str, W]] = set()
    for workload, number, system in planned(systems, workloads, rounds):
        if (system.name, workload) not in not_offered:
            run: Run = {"workload": workload.value, "system": system.name, "round": number}
            measured(run, rounds, partial(runner.run, system, workload), say)
            if "not_offered" in run:
                not_offered.add((system.name, workload))
            yield run


def measured(run: Run, rounds: int, measure: Callable[[], dict[str, Any]], say: Callable[[str], None]) -> Run:
    """Return ``run`` with the figures from ``measure``, or with the reason why there are none."""
    words = f"{run['workload']} {run['round']}/{rounds} {run['system']}"
    try:
        run["figures"] = measure()
        say(f"{words}: {_short(run['figures'])}")
    except NotOfferedError as error:
        run["not_offered"] = str(error)
        say(f"{words}: {error}")
    except (BenchmarkError, KafkaException) as error:
        run["failed"] = str(error)
        say(f"{words} FAILED: {error}")
    return run


_SHORT = ("records_per_s", "caught_up_s", "p50_ms", "p99_ms", "cycle_ms", "cpu_s", "peak_pss_mb")


def _short(figures: dict[str, Any]) -> str:
    return ", ".join(f"{name} {figures[name]:,}" for name in _SHORT if name in figures)
