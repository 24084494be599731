"""CPU seconds of a process and everything that it started, from /proc (Linux).

Spark's JVM and its Python workers are not waited for by the driver, so the system's own sums miss them. Sampling loses
at most what a process used between its last sample and its end.
"""

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


class CpuOfTree:
    """Remembers every process of the trees that it has seen, by its last sample."""

    def __init__(self, *roots: int) -> None:
        self._roots = set(roots)
        self._seconds: dict[int, float] = {}

    def sample(self) -> float:
        """Seconds used so far by all processes seen in the trees, living or ended."""
        parents: dict[int, int] = {}
        seconds: dict[int, float] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                except (FileNotFoundError, ProcessLookupError):
                    continue
                pid = int(entry.name)
                parents[pid] = int(fields[1])
                seconds[pid] = (int(fields[11]) + int(fields[12])) / _TICKS
        for pid in seconds:
            if self._belongs(pid, parents):
                self._seconds[pid] = seconds[pid]
        return sum(self._seconds.values())

    def _belongs(self, pid: int, parents: dict[int, int]) -> bool:
        while pid in parents:
            if pid in self._roots or pid in self._seconds:
                return True
            pid = parents[pid]
        return False
