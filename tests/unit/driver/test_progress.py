import fcntl
import io
import logging
import os
import pty
import re
import struct
import termios
from collections.abc import Callable
from datetime import timedelta

import pytest

from onceward.common.links import Links
from onceward.driver.progress import Progress, Snapshot, follow_time
from onceward.protocol.read_progress import PartitionLag, ReadProgress


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


def test_the_lag_is_unknown_until_a_checkpoint_is_planned() -> None:
    progress = Progress("orders", stream=io.StringIO())
    progress.began(1)
    assert "lag unknown" in progress.snapshot().text()
    progress.read(10, 0)
    assert "lag 0" in progress.snapshot().text()


class Plain:
    """A driver, by default without a terminal."""

    def __init__(self, stream: io.StringIO | None = None) -> None:
        self.now = 0.0
        self.stream = stream or io.StringIO()
        self.progress = Progress("orders", place="coordinator c:7878", stream=self.stream, clock=lambda: self.now)

    def run(self) -> None:
        """Ten minutes of a checkpoint per second."""
        self.progress.opened(3, "a1b2")
        for checkpoint in range(1, 601):
            self.progress.began(checkpoint)
            self.now += 0.5
            self.progress.read(2000, 250)
            self.progress.completed(checkpoint)
            self.now += 0.5
            self.progress.ended(checkpoint)
        self.progress.left("finished")


def test_without_a_terminal_a_job_says_that_it_starts_each_minute_how_it_does_and_that_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    here = Plain()
    with caplog.at_level(logging.INFO, logger="onceward"):
        here.run()
    assert here.stream.getvalue() == "", "logging is configured"
    assert {(record.name, record.levelno) for record in caplog.records} == {("onceward", logging.INFO)}
    start, *minutes, end = caplog.messages
    assert start == "Job orders runs: generation 3, coordinator c:7878, store id a1b2"
    assert len(minutes) == 10
    assert minutes[4] == "Job orders: checkpoint 300 completed, 2.0 k records/s, lag 250, last settled 0 ms ago"
    assert end == (
        "Job orders ended: finished. It ran for 10 min and read 1.2 M records; the last completed checkpoint is 600"
    )


def test_a_query_says_what_it_wrote_because_spark_does_not_say_what_it_reads(caplog: pytest.LogCaptureFixture) -> None:
    here = Plain()
    with caplog.at_level(logging.INFO, logger="onceward"):
        here.progress.opened(3, "a1b2")
        here.progress.read(340, None)
        here.progress.left("stopped")
    assert "and wrote 340 records" in caplog.messages[-1]


def test_an_idle_job_without_a_terminal_says_each_minute_that_it_runs(caplog: pytest.LogCaptureFixture) -> None:
    here = Plain()
    with caplog.at_level(logging.INFO, logger="onceward"):
        here.progress.opened(1, "a1b2")
        for here.now in range(1, 181):
            here.progress.look()
    assert caplog.messages[1:] == ["Job orders: no checkpoint completed yet, 0 records/s"] * 3


def looked_at(here: Plain, seconds: int) -> Callable[[float], bool]:
    """Let this time pass in the pauses of the thread that looks."""
    end = here.now + seconds

    def closed(pause: float) -> bool:
        here.now += pause
        return here.now > end

    return closed


def test_a_checkpoint_that_takes_longer_than_a_minute_is_said_each_minute(caplog: pytest.LogCaptureFixture) -> None:
    here = Plain()
    with caplog.at_level(logging.INFO, logger="onceward"):
        follow_time(here.progress, looked_at(here, 300))
        assert caplog.messages == [], "the job has not begun"
        here.progress.opened(1, "a1b2")
        here.now += 30
        here.progress.began(7)
        follow_time(here.progress, looked_at(here, 180))
        here.progress.read(12_000, 250)
        follow_time(here.progress, looked_at(here, 30))
        here.progress.left("finished")
        follow_time(here.progress, looked_at(here, 300))
    _, *minutes, _ = caplog.messages
    assert minutes == [
        "Job orders: no checkpoint completed yet, 0 records/s",
        "Job orders: no checkpoint completed yet, checkpoint 7 runs for 1 min",
        "Job orders: no checkpoint completed yet, checkpoint 7 runs for 2 min",
        "Job orders: no checkpoint completed yet, 200 records/s, lag 250",
    ]


def test_a_checkpoint_that_was_aborted_runs_no_longer(caplog: pytest.LogCaptureFixture) -> None:
    here = Plain()
    with caplog.at_level(logging.INFO, logger="onceward"):
        here.progress.opened(1, "a1b2")
        here.progress.began(7)
        here.progress.ended(7)
        follow_time(here.progress, looked_at(here, 60))
    assert "runs for" not in caplog.messages[-1]


def test_a_terminal_shows_where_a_job_runs_and_how_it_ended_above_its_line() -> None:
    here = Plain(Terminal())
    here.progress.opened(3, "a1b2")
    here.now = 1.0
    here.progress.began(7)
    here.progress.read(1000, 250)
    here.now = 2.0
    here.progress.left("finished")
    here.progress.close()
    start, line, end = here.stream.getvalue().replace("\n", "").split("\r\x1b[2K")[1:]
    assert start == "Job orders runs: generation 3, coordinator c:7878, store id a1b2"
    assert line.startswith("orders: checkpoint 7")
    assert end.startswith("Job orders ended: finished.")
    assert here.stream.getvalue().endswith("completed checkpoint is none\n")
    assert here.stream.getvalue().count("\n") == 2


def test_a_terminal_keeps_the_age_of_a_long_checkpoint_up_to_date_and_the_line_of_an_idle_job_stays() -> None:
    here = Plain(Terminal())
    here.progress.opened(1, "a1b2")
    follow_time(here.progress, looked_at(here, 10))
    assert here.stream.getvalue().count("\r") == 1, "the first line"
    here.progress.began(7)
    follow_time(here.progress, looked_at(here, 10))
    assert here.stream.getvalue().endswith("oldest open transaction 10.0 s")


def test_a_terminal_shows_the_end_of_a_checkpoint_that_came_right_after_a_drawing() -> None:
    """A job that has caught up and gets no data: no later checkpoint would correct its line."""
    here = Plain(Terminal())
    here.progress.opened(1, "a1b2")
    here.progress.began(7)
    here.now += 3.0
    here.progress.look()
    here.now += 0.1
    here.progress.read(1000, 0)
    here.progress.ended(7)
    assert "lag unknown" in here.stream.getvalue().split("\r")[-1], "drawn a moment ago"
    follow_time(here.progress, looked_at(here, 10))
    drawn = here.stream.getvalue()
    assert drawn.endswith("lag 0 · oldest open transaction 0.0 s")
    follow_time(here.progress, looked_at(here, 10))
    assert here.stream.getvalue() == drawn, "the line of an idle job stays"


def test_the_lines_are_shown_when_logging_is_not_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    here = Plain()
    here.run()
    lines = here.stream.getvalue().splitlines()
    assert len(lines) == 12
    when = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"
    assert re.fullmatch(when + " INFO    onceward Job orders runs: generation 3, .*", lines[0])
    warning = logging.LogRecord("onceward.links", logging.WARNING, "", 0, "event=link_down", (), None)
    assert logging.lastResort is not None
    said = logging.lastResort.format(warning)
    assert re.fullmatch(when + " WARNING onceward.links event=link_down", said), "and what else the process says"
    with monkeypatch.context() as patch:
        patch.setattr(logging.root.manager, "disable", logging.CRITICAL)
        silent = Plain()
        silent.run()
        assert silent.stream.getvalue() == "", "the program has disabled logging"
    monkeypatch.setattr(logging.getLogger("onceward"), "level", logging.WARNING)
    quiet = Plain()
    quiet.run()
    assert quiet.stream.getvalue() == "", "someone has said what to show"


def test_a_job_that_never_ran_says_nothing_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="onceward"):
        Plain().progress.left("PreflightError")
    assert caplog.messages == []


def test_a_closed_standard_error_ends_no_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    here = Plain()
    here.stream.close()
    here.run()


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


def test_a_rate_is_known_also_when_checkpoints_take_longer_than_it_is_counted_over() -> None:
    here = Plain()
    here.progress.opened(1, "a1b2")
    for here.now in (20.0, 40.0, 60.0):
        here.progress.read(2000, 0)
    assert here.progress.snapshot().records_per_second == 100.0
    here.now = 80.0
    assert here.progress.snapshot().records_per_second == 50.0


def test_a_report_has_where_the_newest_checkpoint_left_the_input_and_when_that_was() -> None:
    here = Plain()
    here.progress.opened(1, "a1b2")
    assert here.progress.report() is None, "nothing is planned yet"
    partition = PartitionLag(partition="orders-0", position=12, lag=250)
    here.now = 5.0
    here.progress.read(50, 250, [partition], planned_s_ago=2.0)
    here.now = 10.0
    assert here.progress.report() == ReadProgress(
        lag=250, measured_ago=timedelta(seconds=7), records_per_second=5.0, partitions=(partition,)
    )
    for here.now in (15.0, 26.0):
        here.progress.planned_nothing(0, [])
    assert here.progress.report() == ReadProgress(lag=0, measured_ago=timedelta(0), records_per_second=0.0)
    here.progress.opened(2, "a1b2")
    assert here.progress.report() is None, "the next generation has planned nothing"


class Outage:
    """A driver on a terminal with failing links; only the links change."""

    def __init__(self) -> None:
        self.now = 0.0
        self.terminal = Terminal()
        self.links = Links(clock=lambda: self.now)
        self.progress = Progress("orders", links=self.links, stream=self.terminal, clock=lambda: self.now)

    def line(self) -> str:
        return self.terminal.getvalue().rpartition("\r\x1b[2K")[2]


def test_the_line_shows_a_broken_link_with_its_age_even_when_nothing_else_moves() -> None:
    here = Outage()
    here.progress.began(7)
    here.progress.read(10, 250)
    for here.now in (0.1, 5.0, 12.1):
        here.links.failed("cluster 'main'", "timed out", waiting="4 EndTxn")
    assert here.line().startswith(
        "orders: checkpoint 7 · no answer from cluster 'main' for 12 s, waiting: 4 EndTxn · 0 records/s · lag 250"
    )


def test_the_line_says_what_holds_the_input_back() -> None:
    here = Outage()
    here.progress.began(7)
    here.progress.read(10, 0)
    here.links.failed("an open transaction in in-0 at offset 5", "producer 7", waiting="20 offsets", held=True)
    assert "held back by an open transaction in in-0 at offset 5 for 0 s, waiting: 20 offsets · " in here.line()


def test_the_line_is_back_to_normal_as_soon_as_the_link_works() -> None:
    here = Outage()
    here.progress.began(7)
    here.progress.read(10, 250)
    usual = here.line()
    here.links.failed("cluster 'main'", "timed out", waiting="4 EndTxn")
    assert "no answer" in here.line(), "in the same moment"
    here.links.worked("cluster 'main'")
    assert here.line() == usual


def test_of_several_broken_links_the_line_names_the_oldest_and_counts_the_others() -> None:
    here = Outage()
    for here.now, link in ((1.0, "broker 1"), (2.0, "broker 2"), (4.0, "coordinator at localhost:7878")):
        here.links.failed(link, "refused", waiting="a call")
    assert "no answer from broker 1 and 2 more for 3 s, waiting: a call ·" in here.line()
    here.links.worked("broker 1")
    assert "no answer from broker 2 and 1 more for 2 s" in here.line()


def test_a_link_that_comes_and_goes_does_not_fill_a_log_that_is_no_terminal(caplog: pytest.LogCaptureFixture) -> None:
    links = Links()
    with caplog.at_level(logging.INFO, logger="onceward"):
        progress = Progress("orders", links=links, stream=io.StringIO(), clock=lambda: 1.0)
        for _ in range(50):
            links.failed("cluster 'main'", "timed out", waiting="4 EndTxn")
            links.worked("cluster 'main'")
        progress.close()
        links.failed("cluster 'main'", "timed out", waiting="4 EndTxn")
    lines = [record.getMessage() for record in caplog.records if record.name == "onceward"]
    assert len(lines) == 1
    assert "no answer from cluster 'main'" in lines[0]


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()], ids=["log", "terminal"])
def test_nothing_is_counted_up_for_a_line_that_is_not_drawn(
    stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[Snapshot] = []
    snapshot = Progress.snapshot

    def seen(progress: Progress) -> Snapshot:
        counted.append(snapshot(progress))
        return counted[-1]

    monkeypatch.setattr(Progress, "snapshot", seen)
    progress = Progress("orders", stream=stream, clock=lambda: 1.0)
    for _ in range(50):
        progress.read(10, 250)
    assert len(counted) == 1


def test_a_driver_that_drew_nothing_leaves_the_terminal_alone() -> None:
    terminal = Terminal()
    Progress("orders", stream=terminal).close()
    assert terminal.getvalue() == ""


def test_the_line_is_cut_to_the_width_of_the_terminal() -> None:
    control, terminal = pty.openpty()
    try:
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 30, 0, 0))
        with os.fdopen(terminal, "w") as stream:
            progress = Progress("orders", stream=stream)
            progress.began(7)
            progress.read(10, 250)
            drawn = os.read(control, 1000).decode()
        assert drawn == "\r\x1b[2Korders: checkpoint 7 · 0 recor"
    finally:
        os.close(control)
