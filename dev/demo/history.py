"""The job's checkpoints as listed by ``onceward checkpoints --json``."""

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from onceward.dev.errors import DemoError
from onceward.dev.managed_process import OURS

__all__ = ["History", "history_of", "told_by"]

_LIMIT = 1000
_TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True)
class History:
    """Counts over all generations."""

    generations: int
    completed: int
    aborted: int
    unsettled: int
    """Completed checkpoints whose commits are not all proved, and undecided checkpoints."""


def told_by(coordinator: str, job: str, directory: Path) -> History:
    """Ask a running coordinator, from ``directory``. Raises DemoError if the command fails."""
    command = [sys.executable, "-m", "onceward.operate", "checkpoints", job, "--json", "--limit", str(_LIMIT)]
    ran = subprocess.run(
        [*command, "--coordinator", coordinator],
        cwd=directory,
        env={"PYTHONPATH": OURS},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if ran.returncode != 0:
        raise DemoError(f"The coordinator did not list its checkpoints:\n{ran.stderr}")
    return history_of(ran.stdout)


def history_of(listing: str) -> History:
    """Count the checkpoints that the command printed."""
    checkpoints = json.loads(listing)
    states = [one["state"] for one in checkpoints]
    return History(
        generations=max((int(one["generation"]) for one in checkpoints), default=0),
        completed=sum(state in ("completed", "settled") for state in states),
        aborted=states.count("aborted"),
        unsettled=sum(state in ("completed", "triggered") for state in states),
    )
