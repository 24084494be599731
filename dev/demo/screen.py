"""The display while the demo runs: a live panel on a terminal, plain lines elsewhere."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

__all__ = ["Screen", "Status"]

_PLAIN_EVERY_S = 5.0


@dataclass(frozen=True, kw_only=True)
class Status:
    """A snapshot of the running demo."""

    total: int
    """Records to feed."""
    fed: int
    processed: int
    """Input records whose outputs are settled."""
    written: int
    """Offsets of the output topics: records and control records, decided or not."""
    generation: int
    checkpoint: int
    kills: int
    planned_kills: int
    restarts: int

    @property
    def lag(self) -> int:
        return self.fed - self.processed

    def line(self) -> str:
        """Return the whole status in one line."""
        return (
            f"fed {self.fed:,} of {self.total:,}, processed {self.processed:,}, lag {self.lag:,}, "
            f"written {self.written:,}, generation {self.generation}, checkpoint {self.checkpoint}, "
            f"kills {self.kills}/{self.planned_kills}, restarts {self.restarts}"
        )


class Screen:
    """A context manager. Events remain; the status is updated in place or, without a terminal, printed every 5 s."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._start = time.monotonic()
        self._phase = ""
        self._status: Status | None = None
        self._said = float("-inf")
        self._live = Live(console=console, get_renderable=self._panel, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def phase(self, text: str) -> None:
        """Show what the demo does from now on."""
        self._phase = text
        self._status = None
        self.print(text, style="bold")

    def print(self, text: str, style: str = "") -> None:
        """Show an event, which remains on the screen."""
        stamp = f"{time.monotonic() - self._start:6.1f} s  "
        for line in text.splitlines():
            self._console.print(Text(stamp) + Text(line, style), soft_wrap=True)
            stamp = " " * len(stamp)

    def show(self, status: Status) -> None:
        """Show the present status."""
        self._status = status
        now = time.monotonic()
        if not self._console.is_terminal and now - self._said >= _PLAIN_EVERY_S:
            self._said = now
            self.print(status.line())

    def table(self, title: str, rows: Mapping[str, str]) -> None:
        """Show the result."""
        self._live.stop()
        table = Table(title=title, show_header=False, title_justify="left")
        table.add_column(style="bold")
        table.add_column(overflow="fold")
        for name, text in rows.items():
            table.add_row(name, text)
        self._console.print(table)

    def verdict(self, *, passed: bool) -> None:
        """Show the last line."""
        self._console.print(
            f"exactly once: {'PASS' if passed else 'FAIL'}", style="bold green" if passed else "bold red"
        )

    def _panel(self) -> Group:
        status = self._status
        elapsed = f"{time.monotonic() - self._start:6.1f} s  "
        if status is None:
            return Group(Text(f"{elapsed}{self._phase} ...", style="bold"))
        bars = Table.grid(padding=(0, 2))
        for name, count in (("fed", status.fed), ("processed", status.processed)):
            bars.add_row(name, ProgressBar(total=status.total, completed=count, width=40), f"{count:,}")
        return Group(
            Text(f"{elapsed}{self._phase}", style="bold"),
            bars,
            Text(
                f"lag {status.lag:,}   generation {status.generation}   checkpoint {status.checkpoint}   "
                f"kills {status.kills}/{status.planned_kills}   restarts {status.restarts}"
            ),
        )
