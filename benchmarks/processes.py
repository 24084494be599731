"""What a process and everything that it started use: CPU seconds and memory, from /proc (Linux).

Spark's JVM and its Python workers are not waited for by the driver, so the system's own sums miss them. Sampling loses
at most what a process used between its last sample and its end, and one that began and ended between two samples.
"""

import contextlib
import os
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Process", "ProcessTree", "Usage", "process", "processes"]

_TICKS = os.sysconf("SC_CLK_TCK")
_PAGE = os.sysconf("SC_PAGE_SIZE")
_PSS = re.compile(rb"^Pss:\s+(\d+) kB", re.MULTILINE)
_KILL_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Process:
    """One that was there at a moment."""

    start: int
    """Tells it from others with its id, before and after it."""
    parent: int
    seconds: float
    """CPU so far, its children's not among them."""
    rss: int
    """Bytes."""
    ended: bool
    """Its parent has not asked for its exit code yet."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Of all processes seen in the trees, living or ended: CPU so far, and the most memory that they had together."""

    cpu_seconds: float = 0.0
    peak_rss: int = 0
    """Bytes. Pages that several processes share count once for each."""
    peak_pss: int = 0
    """Bytes. Shared pages are divided among those that share them. Looked at once per `pss_every` seconds."""


def processes() -> dict[int, Process]:
    """All processes of this machine now, by id; 4 ms of CPU for a hundred of them."""
    return {
        int(name): found for name in os.listdir("/proc") if name.isdigit() and (found := process(int(name))) is not None
    }


class ProcessTree:
    """Remembers every process of the trees that it has seen, by its last sample."""

    def __init__(self, *roots: int, pss_every: float = 1.0) -> None:
        """``roots``: ids of processes that run now."""
        self._seconds: dict[tuple[int, int], float] = {
            (pid, found.start): found.seconds for pid in roots if (found := process(pid)) is not None
        }
        """By process id and start: ids are used again."""
        self._rss = self._pss = 0
        self._pss_every = pss_every
        self._pss_at = -pss_every

    def sample(self, now: Mapping[int, Process] | None = None) -> Usage:
        """Look at them now. ``now``: what `processes` has just given, for those who have several trees."""
        members = self._members(processes() if now is None else now)
        for pid, one in members.items():
            self._seconds[pid, one.start] = one.seconds
        self._rss = max(self._rss, sum(one.rss for one in members.values()))
        if time.monotonic() - self._pss_at >= self._pss_every:
            self._pss_at = time.monotonic()
            self._pss = max(self._pss, sum(_pss(pid) for pid in members))
        return Usage(cpu_seconds=sum(self._seconds.values()), peak_rss=self._rss, peak_pss=self._pss)

    def kill(self) -> None:
        """SIGKILL whatever still lives of the trees, until nothing does; for a system that did not clean up."""
        limit = time.monotonic() + _KILL_LIMIT_S
        while living := self._living():
            for pid in living:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > limit:
                return  # one that the kernel holds dies when it comes back from there
            time.sleep(0.01)

    def _living(self) -> list[int]:
        """Remembered, so that one whose parent is killed first is found again."""
        members = self._members(processes())
        for pid, one in members.items():
            self._seconds.setdefault((pid, one.start), 0.0)
        return [pid for pid, one in members.items() if not one.ended]

    def _members(self, now: Mapping[int, Process]) -> dict[int, Process]:
        """The trees' roots, those that were seen to belong to one, and those that such a one has started."""
        found: dict[int, bool] = {}

        def belongs(pid: int) -> bool:
            one = now.get(pid)
            if one is None:
                return False
            if pid not in found:
                found[pid] = (pid, one.start) in self._seconds or belongs(one.parent)
            return found[pid]

        return {pid: one for pid, one in now.items() if belongs(pid)}


def process(pid: int) -> Process | None:
    """The one with this id, as it is now; None when there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # numbered as in proc(5), from the third on
    return Process(
        start=int(fields[19]),
        parent=int(fields[1]),
        seconds=(int(fields[11]) + int(fields[12])) / _TICKS,
        rss=int(fields[21]) * _PAGE,
        ended=fields[0] in "ZX",
    )


def _pss(pid: int) -> int:
    try:
        match = _PSS.search(Path(f"/proc/{pid}/smaps_rollup").read_bytes())
    except OSError:  # ended, or not ours to look into
        return 0
    return int(match[1]) * 1024 if match else 0
