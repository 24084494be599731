"""Scenarios: one folder each under ``tests/network/scenarios``, with a ``scenario.toml`` that defines the scenario.

    row, title          the fault's row in tests/network/README.md, and what happens in one line
    phases              where in the protocol the fault begins, see `Phase`
    coordinators        2 for a leader and a standby that share a database
    [setup]             how the job differs from the usual one
    [fault]             what is done to which links
    [meanwhile]         how long the fault lasts, and what else happens
    [verify]            what is expected in addition to the checks of every scenario

Every scenario ends in the same way: every link is restored.
"""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from onceward.common.killpoints import KillPoint
from onceward.dev.toxiproxy import Stream, Toxic

__all__ = ["SCENARIOS", "Do", "Fault", "Kill", "Phase", "Scenario", "all_scenarios", "load"]

SCENARIOS = Path(__file__).parent / "scenarios"


class Phase(StrEnum):
    """Where the protocol is when a fault begins. The driver is stopped there while the fault is put in."""

    TRIGGER = "before the trigger"
    RUN = "during the run"
    PREPARED = "between pre-commit and acknowledgement"
    DECIDED = "between decision and EndTxn"
    SETTLING = "during settling"
    RECOVERY = "during recovery"

    @property
    def point(self) -> KillPoint:
        """The kill point at which the driver is stopped."""
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
    """What else happens during the fault."""

    WAIT = "nothing"
    STOP = "the driver is asked to stop"
    ORPHAN = "the driver is dead and the coordinator settles for it"


class Kill(StrEnum):
    """The process that dies by SIGKILL in the middle of a fault and restarts at once."""

    DRIVER = "driver"
    COORDINATOR = "coordinator"


@dataclass(frozen=True, kw_only=True)
class Fault:
    """What is done to links."""

    links: Sequence[str]
    """Groups or names of links, see `tests.network.faults.chosen`."""
    toxics: Sequence[Toxic] = ()
    down: bool = False
    """Close all connections and refuse new ones."""
    flap_s: float = 0.0
    """Alternate between down and up, each for this many seconds; 0 = do not."""
    unanswered: bool = False
    """The link accepts connections and closes them at once: no server is behind it."""
    drop: bool = False
    """Close open connections once, so that new ones meet the toxics from their first byte."""
    bypass: bool = False
    """No fault: drivers get the servers' own addresses."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One failure."""

    name: str
    row: str
    title: str
    phases: Sequence[Phase]
    fault: Fault
    seconds: float
    coordinators: int = 1
    do: Do = Do.WAIT
    kill: Kill | None = None
    """This process also dies during the fault."""
    setup: Mapping[str, Any] = field(default_factory=dict)
    """Keywords of ``tests.support.jobs.Setup``."""
    aborts: bool = False
    """A checkpoint must be aborted."""
    undecided: bool = False
    """For faults before the decision: no checkpoint may be settled during the fault."""
    goes_on: bool = False
    """A checkpoint must be settled during the fault, by the same generation: another coordinator leads."""
    returns: bool = False
    """The fault must end the driver's generation, and the same driver must continue as the next one."""
    leaves_within_s: float = 0.0
    """A driver that is asked to stop must leave within this time."""
    connects_per_s: float = 50.0
    """Limit for new connections per second through one link during the fault: twice the maximum ever seen."""


def load(folder: Path) -> Scenario:
    """Read a scenario. Raises ValueError for an unknown key or value, so that no scenario is weaker than it reads."""
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
            kill=Kill(meanwhile.pop("kill")) if "kill" in meanwhile else None,
            setup=parts["setup"],
            **meanwhile,
            **parts["verify"],
            **said,
        )
    except (KeyError, TypeError) as error:
        raise ValueError(f"{folder / 'scenario.toml'}: {error}") from error


def all_scenarios() -> list[Scenario]:
    """All scenarios in the order of their names."""
    return [load(file.parent) for file in sorted(SCENARIOS.glob("*/scenario.toml"))]
