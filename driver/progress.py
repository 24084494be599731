"""What a running job says: a line at its start and one at its end; between them one live line on a terminal, a log line
each minute elsewhere."""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from typing import TextIO

from onceward.common.links import Links, Trouble
from onceward.common.printable import logger, printable
from onceward.common.readable import count, duration
from onceward.protocol.read_progress import PartitionLag, ReadProgress

_log = logger("onceward")

_FORMAT = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s %(message)s")
"""Of what is shown if logging is not configured, as the coordinator's."""
_LOG_EVERY = 60.0
"""Seconds between plain log lines."""
_LOOK_EVERY = 1.0
_RECENT = 10.0
"""Seconds over which the rate is counted, or since the last checkpoint but one if that is longer."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What the line shows."""

    checkpoint: int
    records_per_second: float
    lag: int | None
    """Records (offsets) not yet read; None until a checkpoint is planned."""
    oldest_transaction: float
    """Seconds since the start of the oldest checkpoint whose transactions may be open; 0 = none."""
    troubles: tuple[Trouble, ...] = ()
    """Links that do not work now, oldest first."""

    def text(self) -> str:
        """Return the live line."""
        lag = "unknown" if self.lag is None else f"{self.lag:,}"
        return (
            f"checkpoint {self.checkpoint} · {self.broken()}{self.records_per_second:,.0f} records/s · "
            f"lag {lag} · oldest open transaction {self.oldest_transaction:.1f} s"
        )

    def broken(self) -> str:
        """Return the broken links, shown early in the line because a narrow terminal cuts its end: they explain why the
        rest does not move."""
        if not self.troubles:
            return ""
        oldest, *others = self.troubles
        more = f" and {len(others)} more" if others else ""
        said = "held back by" if oldest.held else "no answer from"
        return f"{said} {oldest.link}{more} for {oldest.for_s:.0f} s, waiting: {oldest.waiting} · "


class Progress:
    """Collects values from the driver's threads; draws at most a few times per second."""

    def __init__(
        self,
        job: str,
        *,
        links: Links | None = None,
        place: str = "",
        stream: TextIO | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """``links``: those of the process; the line shows which do not work, and is redrawn when one fails or recovers.
        ``place``: where the job's coordinator is. ``stream``: None for standard error."""
        self._links = links or Links()
        self._clock = clock or (lambda: time.monotonic())
        self._job = job
        self.place = place
        self.store = ""
        """The id of the coordinator's store, once a generation runs."""
        self._stream = stream if stream is not None else sys.stderr
        self._live = self._stream.isatty()
        self._lock = threading.Lock()
        self._open: dict[int, float] = {}
        self._recent: list[tuple[float, int]] = []
        self._checkpoint = 0
        self._completed = 0
        self._settled_at: float | None = None
        self._lag: int | None = None
        self._planned: tuple[float, Iterable[PartitionLag]] | None = None
        """When this generation last planned a checkpoint, and where that left the partitions."""
        self._total = 0
        """Records read since the start."""
        self._said = (self._clock(), 0)
        """When the last log line was said, and the records read until then."""
        self._started: float | None = None
        """None before the first generation and after the end."""
        self._running: tuple[int, float] | None = None
        """The checkpoint that reads, transforms and writes, and since when."""
        self._shown = -_LOG_EVERY
        self._outdated = False
        """Something was not drawn because the line had been drawn a moment before."""
        self._drawn: tuple[str, ...] | None = None
        """The broken links in the line on the terminal; None = no line is drawn."""
        self._links.follow(self.show)
        if logging.lastResort is not None:  # shows warnings where logging is not configured, without a time
            logging.lastResort.setFormatter(_FORMAT)

    def opened(self, generation: int, store: str) -> None:
        """Say that a generation of the job runs. ``store``: the id of the coordinator's store."""
        now, self.store = self._clock(), store
        if self._started is None:
            self._started = now
        with self._lock:
            self._said, self._shown = (now, self._total), now
            self._recent, self._planned, self._running = [(now, 0)], None, None
        self._say(f"Job {self._job} runs: generation {generation}, {self.place}, store id {store}")

    def left(self, how: str) -> None:
        """Say that the job has ended, if a generation of it has run. ``how``: for example finished."""
        if self._started is not None:
            lasted = duration(self._clock() - self._started)
            by_spark = self._planned is not None and self._lag is None  # which does not say how much it reads
            done = f"{'wrote' if by_spark else 'read'} {count(self._total)} records"
            self._say(
                f"Job {self._job} ended: {how}. It ran for {lasted} and {done}; the last "
                f"completed checkpoint is {self._completed or 'none'}"
            )
            self._started = None

    def completed(self, checkpoint: int) -> None:
        """Record that the checkpoint is completed."""
        with self._lock:
            self._completed = max(self._completed, checkpoint)

    def look(self) -> None:
        """Show how the job does, whatever it waits for. On a terminal an up-to-date line of an idle job stays."""
        if self._started is not None and (self._open or self._outdated or not self._live):
            self.show()

    def began(self, checkpoint: int) -> None:
        """Record that the checkpoint's transactions may be open from now on."""
        with self._lock:
            self._checkpoint = max(self._checkpoint, checkpoint)
            self._open[checkpoint] = self._clock()
            self._running = checkpoint, self._open[checkpoint]

    def read(
        self, records: int, lag: int | None, partitions: Iterable[PartitionLag] = (), *, planned_s_ago: float = 0.0
    ) -> None:
        """Record that a checkpoint has read ``records`` and that ``lag`` remain (None = unknown), as it was when the
        checkpoint was planned."""
        self._record(records, lag, partitions, planned_s_ago)
        self.show()

    def planned_nothing(self, lag: int | None, partitions: Iterable[PartitionLag]) -> None:
        """Record that a checkpoint was planned that has nothing to read."""
        self._record(0, lag, partitions, 0.0)

    def _record(self, records: int, lag: int | None, partitions: Iterable[PartitionLag], planned_s_ago: float) -> None:
        with self._lock:
            now = self._clock()
            recent = [(at, n) for at, n in self._recent if now - at < _RECENT] or self._recent[-1:]
            self._recent = [*recent, (now, records)]
            self._total += records
            self._running = None
            self._lag = lag
            self._planned = now - planned_s_ago, partitions

    def report(self) -> ReadProgress | None:
        """Return what listings show of this generation; None until it has planned a checkpoint."""
        with self._lock:
            if self._planned is None:
                return None
            now, (planned, partitions) = self._clock(), self._planned
            partitions = tuple(partitions)  # only now: most checkpoints are never reported
            self._planned = planned, partitions
            return ReadProgress(
                lag=self._lag,
                measured_ago=timedelta(seconds=max(0.0, now - planned)),
                records_per_second=self._rate(now),
                partitions=partitions,
            )

    def _rate(self, now: float) -> float:
        first = self._recent[0][0] if self._recent else now
        return sum(n for _, n in self._recent[1:]) / (now - first) if now > first else 0.0

    def ended(self, checkpoint: int) -> None:
        """Record that the checkpoint's transactions have ended."""
        with self._lock:
            self._open.pop(checkpoint, None)
            self._settled_at = self._clock()
            if self._running is not None and self._running[0] == checkpoint:
                self._running = None
        self.show()

    def snapshot(self) -> Snapshot:
        with self._lock:
            now = self._clock()
            oldest = min(self._open.values(), default=now)
            return Snapshot(
                checkpoint=self._checkpoint,
                records_per_second=self._rate(now),
                lag=self._lag,
                oldest_transaction=now - oldest,
                troubles=self._links.troubles(),
            )

    def show(self) -> None:
        """Draw the line, unless it was drawn a moment ago. On a terminal, a link that fails or recovers is shown at
        once: no other update may come for a long time, and the line would stay out of date."""
        now = self._clock()
        # Called after every checkpoint and every failed attempt, so a call that does not draw must be cheap.
        broken = tuple(trouble.link for trouble in self._links.troubles()) if self._live else ()
        with self._lock:
            changed = self._live and broken != (self._drawn or ())
            if now - self._shown < (0.2 if self._live else _LOG_EVERY) and not changed:
                self._outdated = True
                return
            self._shown, self._drawn, self._outdated = now, broken, False
        if self._live:
            text = printable(f"{self._job}: {self.snapshot().text()}")
            # A line that wraps could not be overwritten.
            self._stream.write(f"\r\x1b[2K{text[: self._width()]}")
            self._stream.flush()
        else:
            self._say(self._report(now))

    def _report(self, now: float) -> str:
        with self._lock:
            (then, before), self._said = self._said, (now, self._total)
            parts = [f"checkpoint {self._completed} completed" if self._completed else "no checkpoint completed yet"]
            running = self._running
            if running is not None and running[1] <= then:  # what it reads is counted at its end
                parts.append(f"checkpoint {running[0]} runs for {duration(now - running[1])}")
            elif now > then:
                parts.append(f"{count(round((self._total - before) / (now - then)))} records/s")
            if self._lag is not None:
                parts.append(f"lag {count(self._lag)}")
            if self._settled_at is not None:
                parts.append(f"last settled {duration(now - self._settled_at)} ago")
        broken = self.snapshot().broken()
        return f"Job {self._job}: {broken}{', '.join(parts)}"

    def _say(self, text: str) -> None:
        """Put it above the line on a terminal, else log it at INFO. If logging is not configured, show it where logging
        then shows warnings."""
        if self._live:
            self._drawn = None
            self._stream.write(f"\r\x1b[2K{printable(text)}\n")
            self._stream.flush()
        elif _log.hasHandlers():
            _log.info("%s", text)
        elif _log.level <= logging.INFO and _log.manager.disable < logging.INFO:
            record = _log.makeRecord(_log.name, logging.INFO, "", 0, "%s", (printable(text),), None)
            shown = logging.StreamHandler(self._stream)
            shown.setFormatter(_FORMAT)
            shown.handle(record)

    def _width(self) -> int | None:
        """Return the terminal's width in characters; None when it is unknown."""
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or None
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        """Leave the terminal on a fresh line."""
        self._links.follow(lambda: None)
        if self._live and self._drawn is not None:
            self._stream.write("\n")
            self._stream.flush()


def follow_time(progress: Progress, closed: Callable[[float], object]) -> None:
    """Look now and then, because a checkpoint may run for longer than the time between two lines.

    :param closed: waits for these seconds, or returns True at the end.
    """
    while not closed(_LOOK_EVERY):
        progress.look()
