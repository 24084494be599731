"""Progress messages of a command, and its question before a change."""

import sys

import typer

from onceward.common.errors import ConfigurationError
from onceward.common.printable import printable

__all__ = ["confirm", "print_result", "say"]


def say(text: str) -> None:
    """Print to standard error: standard output is for results."""
    print(f"onceward: {printable(text)}", file=sys.stderr, flush=True)


def print_result(text: object) -> None:
    """Print a result to standard output."""
    print(printable(str(text)), flush=True)


def confirm(yes: bool, otherwise: str) -> None:
    """Return with ``yes``, or when a person at a terminal agrees. Otherwise raises ConfigurationError that begins with
    ``otherwise``: what did not happen."""
    if not yes and not (sys.stdin.isatty() and typer.confirm("Go on?", default=False, err=True)):
        raise ConfigurationError(f"{otherwise}. Nothing was changed. Pass --yes to confirm.")
