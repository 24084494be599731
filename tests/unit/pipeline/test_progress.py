import io
import logging

import pytest

from coordinator.pipeline.progress import Progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_one_line_that_is_drawn_over() -> None:
    terminal = Terminal()
    progress = Progress("orders", stream=terminal)
    progress.began(7)
    progress.read(1000, 250)
    progress.close()
    line = terminal.getvalue()
    assert line.startswith("\r\x1b[2Korders: checkpoint 7")
    assert "lag 250" in line
    assert "oldest open transaction" in line
    assert line.endswith("\n")


def test_without_a_terminal_it_is_a_log_line_and_nothing_is_written(caplog: pytest.LogCaptureFixture) -> None:
    plain = io.StringIO()
    with caplog.at_level(logging.INFO, logger="onceward"):
        progress = Progress("orders", stream=plain)
        progress.began(3)
        progress.read(1000, 0)
        progress.close()
    assert plain.getvalue() == ""
    assert [record.message for record in caplog.records if "orders: checkpoint 3" in record.message]


def test_the_oldest_open_transaction_is_that_of_the_oldest_checkpoint_not_ended() -> None:
    now = [100.0]
    progress = Progress("orders", stream=io.StringIO(), clock=lambda: now[0])
    progress.began(1)
    now[0] = 103.0
    progress.began(2)
    now[0] = 104.0
    assert progress.snapshot().oldest_transaction == 4.0
    progress.ended(1)
    assert progress.snapshot().oldest_transaction == 1.0
    progress.ended(2)
    assert progress.snapshot().oldest_transaction == 0.0


def test_the_rate_counts_the_records_of_the_last_seconds() -> None:
    now = [0.0]
    progress = Progress("orders", stream=io.StringIO(), clock=lambda: now[0])
    for _ in range(5):
        now[0] += 1.0
        progress.read(200, 0)
    assert progress.snapshot().records_per_second == 200.0
