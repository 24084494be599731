"""One line that tells how a job is doing: live on a terminal, a plain log line now and then elsewhere."""

import logging
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TextIO

_log = logging.getLogger("onceward.progress")

_LOG_EVERY = 10.0
"""Seconds between plain log lines."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What the line shows."""

    checkpoint: int
    records_per_second: float
    lag: int
    """Records (offsets) not yet read."""
    oldest_transaction: float
    """Seconds since the oldest checkpoint began whose transactions may be open; 0 = none."""

    def text(self) -> str:
        return (
            f"checkpoint {self.checkpoint} · {self.records_per_second:,.0f} records/s · lag {self.lag:,} · "
            f"oldest open transaction {self.oldest_transaction:.1f} s"
        )


class Progress:
    """Collects from the driver's threads; draws at most a few times per second."""

    def __init__(self, job: str, *, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._job = job
        self._stream = stream if stream is not None else sys.stderr
        self._live = self._stream.isatty()
        self._lock = threading.Lock()
        self._open: dict[int, float] = {}
        self._recent: list[tuple[float, int]] = []
        self._checkpoint = 0
        self._lag = 0
        self._shown = -_LOG_EVERY

    def began(self, checkpoint: int) -> None:
        """The checkpoint's transactions may be open from now on."""
        with self._lock:
            self._checkpoint = max(self._checkpoint, checkpoint)
            self._open[checkpoint] = self._clock()

    def read(self, records: int, lag: int) -> None:
        """A checkpoint has read ``records``; ``lag`` are left."""
        with self._lock:
            now = self._clock()
            self._recent = [(at, n) for at, n in self._recent if now - at < 10.0]
            self._recent.append((now, records))
            self._lag = lag
        self.show()

    def ended(self, checkpoint: int) -> None:
        """The checkpoint's transactions are ended."""
        with self._lock:
            self._open.pop(checkpoint, None)
        self.show()

    def snapshot(self) -> Snapshot:
        with self._lock:
            now = self._clock()
            first = self._recent[0][0] if self._recent else now
            records = sum(n for _, n in self._recent[1:])
            oldest = min(self._open.values(), default=now)
            return Snapshot(
                checkpoint=self._checkpoint,
                records_per_second=records / (now - first) if now > first else 0.0,
                lag=self._lag,
                oldest_transaction=now - oldest,
            )

    def show(self) -> None:
        now = self._clock()
        if now - self._shown < (0.2 if self._live else _LOG_EVERY):
            return
        self._shown = now
        text = self.snapshot().text()
        if self._live:
            self._stream.write(f"\r\x1b[2K{self._job}: {text}")
            self._stream.flush()
        else:
            _log.info("%s: %s", self._job, text)

    def close(self) -> None:
        """Leave the terminal on a fresh line."""
        if self._live:
            self._stream.write("\n")
            self._stream.flush()
