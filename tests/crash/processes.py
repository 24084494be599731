"""Where the suite's processes find the project's packages, and the children of a process."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

__all__ = ["ROOT", "descendants"]

ROOT = Path(__file__).resolve().parents[2]


def descendants(pid: int) -> Iterator[tuple[int, str]]:
    """(process id, command line) of all descendants of a process."""
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                with contextlib.suppress(OSError):
                    yield child, Path(f"/proc/{child}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                yield from descendants(child)
