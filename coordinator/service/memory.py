"""How much memory this process may use: that of the machine, or less in a container."""

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

__all__ = ["usable_memory"]


def usable_memory(root: Path = Path("/")) -> int:
    """Bytes. The least limit of the process's control groups (version 2, or 1), or the memory of the machine."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for file in _files(root):
        try:
            limits.append(int(file.read_text()))
        except (OSError, ValueError):  # no such group, or "max"
            continue
    return min(limits)


def _files(root: Path) -> Iterator[Path]:
    """Where limits may stand. Each group limits those inside of it; a container may see its own as the topmost."""
    groups = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return
    for line in lines:
        _, kinds, own = line.split(":", 2)
        group = PurePosixPath(own.lstrip("/"))
        within = (group, *group.parents)
        if not kinds:
            yield from (groups / one / "memory.max" for one in within)
        elif "memory" in kinds.split(","):
            yield from (groups / "memory" / one / "memory.limit_in_bytes" for one in within)
