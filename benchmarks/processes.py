"""CPU seconds and memory of a process and its descendants, from /proc (Linux).

The driver does not wait for Spark's JVM and its Python workers, so the system's own sums miss them. Sampling misses at
most what a process used between its last sample and its end, and processes that began and ended between two samples.
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
    """A process at one moment."""

    start: int
    """Distinguishes it from earlier and later processes with the same id."""
    parent: int
    seconds: float
    """CPU so far, without its children's."""
    rss: int
    """Bytes."""
    ended: bool
    """It has ended, and its parent has not collected the exit code yet."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """Usage of all processes seen in the trees, living or ended: CPU so far, and their peak total memory."""

    cpu_seconds: float = 0.0
    peak_rss: int = 0
    """Bytes. Pages shared by several processes count once for each."""
    peak_pss: int = 0
    """Bytes. Shared pages are divided among their sharers. Sampled every `pss_every` seconds."""


def processes() -> dict[int, Process]:
    """Return all present processes of this machine, by id; takes 4 ms of CPU for a hundred of them."""
    return {
        int(name): found for name in os.listdir("/proc") if name.isdigit() and (found := process(int(name))) is not None
    }


class ProcessTree:
    """Remembers every process that it has seen in the trees, by its last sample."""

    def __init__(self, *roots: int, pss_every: float = 1.0) -> None:
        """``roots``: ids of running processes."""
        self._seconds: dict[tuple[int, int], float] = {
            (pid, found.start): found.seconds for pid in roots if (found := process(pid)) is not None
        }
        """By process id and start, because ids are reused."""
        self._rss = self._pss = 0
        self._pss_every = pss_every
        self._pss_at = -pss_every

    def sample(self, now: Mapping[int, Process] | None = None) -> Usage:
        """Sample the trees. ``now``: a result of `processes`, for callers with several trees."""
        members = self._members(processes() if now is None else now)
        for pid, one in members.items():
            self._seconds[pid, one.start] = one.seconds
        self._rss = max(self._rss, sum(one.rss for one in members.values()))
        if time.monotonic() - self._pss_at >= self._pss_every:
            self._pss_at = time.monotonic()
            self._pss = max(self._pss, sum(_pss(pid) for pid in members))
        return Usage(cpu_seconds=sum(self._seconds.values()), peak_rss=self._rss, peak_pss=self._pss)

    def kill(self) -> None:
        """SIGKILL the trees' processes until none is alive, for up to 10 s; for a system that did not clean up."""
        limit = time.monotonic() + _KILL_LIMIT_S
        while living := self._living():
            for pid in living:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > limit:
                return  # a process held by the kernel dies when it returns from there
            time.sleep(0.01)

    def _living(self) -> list[int]:
        """Return the living processes, and remember them: one whose parent is killed first must be found again."""
        members = self._members(processes())
        for pid, one in members.items():
            self._seconds.setdefault((pid, one.start), 0.0)
        return [pid for pid, one in members.items() if not one.ended]

    def _members(self, now: Mapping[int, Process]) -> dict[int, Process]:
        """Return the trees' roots, remembered members, and their descendants."""
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
    """Return the present state of this process; None if it does not exist."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # fields are numbered as in proc(5), from the third
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
    except OSError:  # ended, or not accessible to us
        return 0
    return int(match[1]) * 1024 if match else 0
