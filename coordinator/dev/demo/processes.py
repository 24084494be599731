"""The demo's processes: programs of ours that end with the demo."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from onceward.coordinator.dev.managed_process import OURS, ManagedProcess

__all__ = ["start"]


def start(name: str, module: Sequence[str], directory: Path, environment: Mapping[str, str]) -> ManagedProcess:
    """Start ``python -m module...`` in ``directory``, which also gets its log.

    Not in the user's directory: a folder there may have the name of one of our packages.
    """
    command = [sys.executable, "-m", *module]
    ours = {"PYTHONPATH": OURS, "PYTHONUNBUFFERED": "1"}
    return ManagedProcess(name, command, directory / f"{name}.log", {**ours, **environment}, directory=directory)
