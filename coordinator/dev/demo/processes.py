"""The demo's processes: programs of ours that live no longer than the demo."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from onceward.coordinator.dev.managed_process import OURS, ManagedProcess

__all__ = ["start"]


def start(name: str, module: Sequence[str], directory: Path, environment: Mapping[str, str]) -> ManagedProcess:
    """Start ``python -m module...``; its log is in ``directory``, where it runs.

    Not in the user's directory: a folder of theirs may have the name of a package of ours.
    """
    command = [sys.executable, "-m", *module]
    ours = {"PYTHONPATH": OURS, "PYTHONUNBUFFERED": "1"}
    return ManagedProcess(name, command, directory / f"{name}.log", {**ours, **environment}, directory=directory)
