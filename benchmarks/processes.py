"""What a process and everything that it started use: CPU seconds and memory, from /proc (Linux).

Spark's JVM and its Python workers are not waited for by the driver, so the system's own sums miss them. Sampling loses
at most what a process used between its last sample and its end.
"""

import contextlib
import os
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["ProcessTree", "Usage"]

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PSS = re.compile(rb"^Pss:\s+(\d+) kB", re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Of all processes seen in the trees, living or ended: CPU so far, and the most memory that they had together."""

    cpu_seconds: float
    peak_rss: int
    """Bytes. Pages that several processes share count once for each."""
    peak_pss: int
    """Bytes. Shared pages are divided among those that share them. Looked at once per `pss_every` seconds."""


class ProcessTree:
    """Remembers every process of the trees that it has seen, by its last sample."""

    def __init__(self, *roots: int, pss_every: float = 1.0) -> None:
        self._roots = set(roots)
        self._seconds: dict[tuple[int, int], float] = {}
        """By process id and start: ids are used again."""
        self._rss = self._pss = 0
        self._pss_every = pss_every
        self._pss_at = -pss_every

    def sample(self) -> Usage:
        """Look at all processes now."""
        parents: dict[int, int] = {}
        found: dict[int, tuple[int, float, int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                except (FileNotFoundError, ProcessLookupError):
                    continue
                pid = int(entry.name)
                parents[pid] = int(fields[1])
                found[pid] = (int(fields[19]), (int(fields[11]) + int(fields[12])) / _TICKS, int(fields[21]) * _PAGE)
        living = {pid for pid, (start, _, _) in found.items() if self._belongs(pid, start, parents, found)}
        for pid in living:
            start, seconds, _ = found[pid]
            self._seconds[pid, start] = seconds
        self._rss = max(self._rss, sum(found[pid][2] for pid in living))
        if time.monotonic() - self._pss_at >= self._pss_every:
            self._pss_at = time.monotonic()
            self._pss = max(self._pss, sum(_pss(pid) for pid in living))
        return Usage(cpu_seconds=sum(self._seconds.values()), peak_rss=self._rss, peak_pss=self._pss)

    def kill(self) -> None:
        """SIGKILL whatever still lives of what was seen in the trees; for a system that did not clean up."""
        self.sample()
        for pid, start in list(self._seconds):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
                if int(fields[19]) == start:
                    os.kill(pid, signal.SIGKILL)

    def _belongs(self, pid: int, start: int, parents: dict[int, int], found: dict[int, tuple[int, float, int]]) -> bool:
        """A tree's process, one that was seen to be, or started by such a one."""
        while pid in parents:
            if pid in self._roots or (pid, start) in self._seconds:
                return True
            pid = parents[pid]
            start = found[pid][0] if pid in found else 0
        return False


def _pss(pid: int) -> int:
    try:
        match = _PSS.search(Path(f"/proc/{pid}/smaps_rollup").read_bytes())
    except OSError:  # ended, or not ours to look into
        return 0
    return int(match[1]) * 1024 if match else 0
