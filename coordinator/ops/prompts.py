"""What a command says while it works, and what it asks before it changes something."""

import sys

import typer

from onceward.coordinator.errors import ConfigurationError
from onceward.coordinator.printable import printable

__all__ = ["confirm", "say"]


def say(text: str) -> None:
    """On standard error: standard output is for what was asked for."""
    print(f"onceward: {printable(text)}", file=sys.stderr, flush=True)


def confirm(yes: bool, otherwise: str) -> None:
    """Go on with ``yes``, or when a person at a terminal says so. Raises ConfigurationError, which begins with
    ``otherwise``: what has not happened."""
    if not yes and not (sys.stdin.isatty() and typer.confirm("Go on?", default=False, err=True)):
        raise ConfigurationError(f"{otherwise}. Nothing was changed. Say --yes if that is what you want.")
