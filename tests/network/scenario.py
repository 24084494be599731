"""Scenarios: one folder each under ``tests/network/scenarios``, with a ``scenario.toml`` that says all of it.

    row, title          which fault of docs/network.md, and what happens in one line
    phases              where in the protocol it begins, see `Phase`
    [setup]             how the job differs from the usual one
    [fault]             what is done to which links
    [meanwhile]         how long, and what else goes on
    [verify]            what is expected besides everything that is always checked

Restoring is the same for all: every link is as it was made.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from onceward.coordinator.dev.toxiproxy import Stream, Toxic
from onceward.coordinator.killpoints import KillPoint

__all__ = ["SCENARIOS", "Do", "Fault", "Kill", "Phase", "Scenario", "all_scenarios", "load"]

SCENARIOS = Path(__file__).parent / "scenarios"


class Phase(StrEnum):
    """Where the protocol is when a fault begins; the driver stands still there while it is put in."""

    TRIGGER = "before the trigger"
    RUN = "during the run"
    PREPARED = "between pre-commit and acknowledgement"
    DECIDED = "between decision and EndTxn"
    SETTLING = "during settling"
    RECOVERY = "during recovery"

    @property
    def point(self) -> KillPoint:
        """Where the driver is stopped."""
        return _POINTS[self]


_POINTS = {
    Phase.TRIGGER: KillPoint.DRIVER_AFTER_SETTLE,
    Phase.RUN: KillPoint.TASK_MID_WRITE,
    Phase.PREPARED: KillPoint.DRIVER_AFTER_PRE_COMMIT,
    Phase.DECIDED: KillPoint.DRIVER_AFTER_DECISION,
    Phase.SETTLING: KillPoint.DRIVER_BETWEEN_END_TXN,
    Phase.RECOVERY: KillPoint.DRIVER_AFTER_CLAIM,
}


class Do(StrEnum):
    """What goes on besides while the fault is in force."""

    WAIT = "nothing"
    STOP = "the driver is asked to stop"
    ORPHAN = "the driver is dead and the coordinator settles for it"


class Kill(StrEnum):
    """What dies by SIGKILL in the middle of a fault, and comes back at once."""

    DRIVER = "driver"
    COORDINATOR = "coordinator"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is done to links."""

    links: Sequence[str]
    """Groups or names of links, see `tests.network.faults.chosen`."""
    toxics: Sequence[Toxic] = ()
    down: bool = False
    """Connections are closed and refused."""
    flap_s: float = 0.0
    """Down and up in turn, so many seconds each; 0 = not."""
    nobody: bool = False
    """The link accepts, and closes at once: nobody is behind it."""
    drop: bool = False
    """Open connections are closed once, so that new ones meet the toxics from their first byte."""
    bypass: bool = False
    """No fault: drivers are told the servers' own addresses."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One failure."""

    name: str
    row: str
    title: str
    phases: Sequence[Phase]
    fault: Fault
    seconds: float
    do: Do = Do.WAIT
    kill: Kill | None = None
    """Random mode: besides, this process dies under the fault."""
    setup: Mapping[str, Any] = field(default_factory=dict)
    """Keywords of ``tests.crash.jobs.Setup``."""
    aborts: bool = False
    """A checkpoint must be decided against."""
    undecided: bool = False
    """Before the decision: no checkpoint may be settled while the fault is in force."""
    returns: bool = False
    """The driver's generation must be ended meanwhile, and the same driver goes on as the next one."""
    leaves_within_s: float = 0.0
    """A driver that is asked to stop must have left after this."""
    connects_per_s: float = 50.0
    """Most connections through one link, per second of the fault: twice the most ever seen."""


def load(folder: Path) -> Scenario:
    """Raises ValueError for a word that is not known, so that no scenario is quietly weaker than it reads."""
    said = tomllib.loads((folder / "scenario.toml").read_text(encoding="utf-8"))
    parts = {name: dict(said.pop(name, {})) for name in ("setup", "fault", "meanwhile", "verify")}
    fault, meanwhile = parts["fault"], parts["meanwhile"]
    try:
        toxics = tuple(
            Toxic(type=toxic.pop("type"), stream=Stream(toxic.pop("stream")), attributes=toxic)
            for toxic in fault.pop("toxic", [])
        )
        return Scenario(
            name=folder.name,
            phases=tuple(Phase(phase) for phase in said.pop("phases", list(Phase))),
            fault=Fault(toxics=toxics, **fault),
            seconds=meanwhile.pop("seconds"),
            do=Do(meanwhile.pop("do", Do.WAIT.value)),
            setup=parts["setup"],
            **meanwhile,
            **parts["verify"],
            **said,
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder / 'scenario.toml'}: {error}") from error


def all_scenarios() -> list[Scenario]:
    """In the order of their names."""
    return [load(file.parent) for file in sorted(SCENARIOS.glob("*/scenario.toml"))]
