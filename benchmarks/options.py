"""Options of every benchmark that runs in rounds."""

import argparse
from pathlib import Path
from typing import TypeVar

from benchmarks.results import RESULTS

__all__ = ["add_options", "chosen", "rounds_of"]

T = TypeVar("T")

_ROUNDS = 3


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add --rounds, --quick, --no-plots, --results, --directory."""
    parser.add_argument("--rounds", type=int, help=f"default: {_ROUNDS}")
    parser.add_argument("--quick", action="store_true", help="small sizes: whether it works, not how fast it is")
    parser.add_argument("--no-plots", action="store_true")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the directory of results goes")
    parser.add_argument("--directory", type=Path, help="where broker and stores are meanwhile: the disk measured")


def rounds_of(options: argparse.Namespace) -> int:
    """Return the requested number of rounds; the default of a quick run is one."""
    return options.rounds or (1 if options.quick else _ROUNDS)


def chosen(parser: argparse.ArgumentParser, option: str, names: str, known: dict[str, T]) -> list[T]:
    """Return the chosen values in the order of `known`."""
    wanted = set(known) if names == "all" else {name for name in names.split(",") if name}
    if unknown := wanted - known.keys():
        parser.error(f"{option}: there is no {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return [value for name, value in known.items() if name in wanted]
