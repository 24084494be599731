"""Which jobs an address shows, and how long a phase is drawn."""

import re
from collections.abc import Callable
from datetime import timedelta

import pytest

from onceward.common.errors import CoordinatorLostError
from onceward.protocol.phases import Phase, Phases
from onceward.protocol.status import JobStatus
from onceward.protocol.values import (
    CheckpointState,
    Generation,
)
from onceward.watch.web.bars import WIDTH, bars, legend
from onceward.watch.web.overview import MAX_ROWS, overview, parse_query
from onceward.watch.web.reading import Reader
from onceward.watch.web.rendering import FILES
from onceward.watch.web.sparkline import HEIGHT, points
from onceward.watch.web.sparkline import WIDTH as SPARKLINE_WIDTH
from onceward.wire.rows import JobProgress, JobSummary, JobWait
from tests.unit.web.rows import NOW, checkpoint, job


def progress(lag: int | None) -> JobProgress:
    return JobProgress(lag=lag, measured_at=NOW, records_per_second=1.0, recent_lag=(), recent_records_per_second=())


def names(jobs: list[JobSummary], *query: tuple[str, str]) -> list[str]:
    return [row.job for row in overview(jobs, parse_query(query), NOW).rows]


def test_thousands_of_jobs_are_never_in_one_answer() -> None:
    jobs = [job(f"job-{number:04}") for number in range(5000)]
    first = overview(jobs, parse_query([("limit", str(MAX_ROWS))]), NOW)
    assert (len(first.rows), first.pages, first.total) == (100, 50, 5000)
    assert names(jobs, ("limit", "100"), ("page", "50"))[-1] == "job-4999"
    assert names(jobs, ("page", "999999999"))[-1] == "job-4999", "a page after the last one is the last one"
    assert names(jobs, ("q", "4242")) == ["job-4242"]


def test_pages_show_each_job_once_whatever_the_order() -> None:
    jobs = [job(f"job-{number}", generation=Generation(1 + number % 3)) for number in range(25)]
    for sort in ("name", "status", "generation", "waits", "completed", "lag", "losses"):
        for reverse in ("0", "1"):
            query = (("sort", sort), ("reverse", reverse), ("limit", "10"))
            pages = [names(jobs, *query, ("page", str(page))) for page in (1, 2, 3)]
            assert sorted(name for page in pages for name in page) == sorted(one.job for one in jobs)


def test_orders_put_what_a_person_looks_for_first() -> None:
    minute = timedelta(minutes=1)
    jobs = [
        job("calm"),
        job("old", last_completed_at=NOW - minute),
        job("stuck", waits=(JobWait(what="x", since=NOW - minute),)),
        job("lossy", unacknowledged_losses=3),
        job("behind", progress=progress(9)),
        job("query", progress=progress(None)),
        job("up-to-date", progress=progress(0)),
        job("restless", generation=Generation(9)),
        job("halted", status=JobStatus.HALTED),
        job("done", status=JobStatus.FINISHED),
        job("failing", failures=1, failure="not JSON"),
    ]
    sorts = ("status", "completed", "waits", "losses", "lag", "generation")
    assert {sort: names(jobs, ("sort", sort))[0] for sort in sorts} == {
        "status": "halted", "completed": "old", "waits": "stuck", "losses": "lossy", "lag": "behind",
        "generation": "restless",
    }  # fmt: skip
    assert names(jobs, ("sort", "lag"))[1] == "up-to-date", "unknown is not 0 and comes last"
    assert names(jobs, ("sort", "status"))[:2] == ["halted", "failing"]
    assert names(jobs, ("sort", "status"), ("reverse", "1"))[0] == "done"
    assert names(jobs, ("status", "halted")) == ["halted"]


def test_an_address_of_a_view_leads_back_to_it() -> None:
    query = parse_query([("q", "a b"), ("status", "halted"), ("sort", "name"), ("reverse", "1"), ("page", "3")])
    assert query.address(page=4) == "/?q=a+b&status=halted&sort=name&reverse=1&page=4"
    assert query.address(status=None) == "/?q=a+b&sort=name&reverse=1", "another view begins with its first page"


def test_bars_are_on_one_scale_and_phases_follow_each_other() -> None:
    half = checkpoint(settled=timedelta(seconds=2))
    whole, short = bars([checkpoint(), half], NOW)
    assert [(one.name, one.x, one.width) for one in whole.phases] == [
        *(("wait", 0, WIDTH / 10), ("run", WIDTH / 10, WIDTH / 5)),
        *(("decide", WIDTH * 3 / 10, 0), ("settle", WIDTH * 3 / 10, WIDTH * 7 / 10)),
    ]
    assert sum(one.width for one in short.phases) == WIDTH / 2
    assert whole.took == timedelta(seconds=10)


def test_a_phase_that_is_not_over_grows_until_now_and_an_aborted_one_does_not() -> None:
    running = checkpoint(state=CheckpointState.TRIGGERED, ran=None, decided=None, settled=None)
    aborted = checkpoint(state=CheckpointState.ABORTED, decided=None, settled=None)
    settling = checkpoint(state=CheckpointState.COMPLETED, settled=None)
    later = NOW + timedelta(seconds=60)
    drawn = bars([running, aborted, settling], later)
    shown = [[(one.name, one.took.total_seconds(), one.over) for one in bar.phases] for bar in drawn]
    assert shown[0] == [("wait", 1, True), ("run", 60, False)]
    assert shown[1] == [("wait", 1, True), ("run", 2, True)]
    assert shown[2] == [("wait", 1, True), ("run", 2, True), ("decide", 0, True), ("settle", 58, False)]


def measured(**seconds: float) -> Phases:
    return {Phase[name.upper()]: timedelta(seconds=took) for name, took in seconds.items()}


def test_a_run_is_drawn_as_the_phases_that_its_driver_measured_in_their_order_and_the_rest() -> None:
    one = checkpoint(phases=measured(flush=0.5, plan=0.25, read_transform=1.0), settled=timedelta(0))
    (bar,) = bars([one], NOW)
    shown = [(part.name, part.took.total_seconds()) for part in bar.phases]
    assert shown == [
        *(("wait", 1), ("plan", 0.25), ("read+transform", 1), ("flush", 0.5), ("rest", 0.25)),
        *(("decide", 0), ("settle", 0)),
    ]
    assert bar.took == timedelta(seconds=3), "they are part of the run"
    assert [part.x for part in bar.phases[1:]] == pytest.approx([part.x + part.width for part in bar.phases[:-1]])


def test_an_aborted_run_shows_the_phases_until_its_abort() -> None:
    one = checkpoint(state=CheckpointState.ABORTED, phases=measured(plan=0.5), decided=None, settled=None)
    (bar,) = bars([one], NOW)
    shown = [(part.name, part.took.total_seconds()) for part in bar.phases]
    assert shown == [("wait", 1), ("plan", 0.5), ("rest", 1.5)]


def test_phases_that_are_longer_than_the_run_they_are_part_of_are_not_drawn() -> None:
    (bar,) = bars([checkpoint(phases=measured(produce=2.1))], NOW)
    assert [part.name for part in bar.phases] == ["wait", "run", "decide", "settle"]
    assert bar.took == timedelta(seconds=10)


def test_the_thinnest_phases_stay_visible_within_their_bar() -> None:
    phases = {phase: timedelta(microseconds=1) for phase in Phase}
    (bar,) = bars([checkpoint(phases=phases)], NOW)
    assert all(part.width > 1 for part in bar.phases if part.took)
    assert bar.phases[-1].x + bar.phases[-1].width == pytest.approx(WIDTH)


def test_the_legend_has_what_is_drawn_only_and_each_phase_has_a_meaning_and_a_colour() -> None:
    shown = bars([checkpoint(), checkpoint(phases=measured(produce=1.0))], NOW)
    assert list(legend(shown)) == ["wait", "run", "produce", "rest", "settle"], "nothing of both was decided late"
    every = legend(bars([checkpoint(phases={phase: timedelta(milliseconds=1) for phase in Phase})], NOW))
    style = FILES["/style.css"][0].decode()
    classes = {phase.replace("+", "-") for phase in (*every, *legend(shown), "decide")}
    assert len(classes) == len(Phase) + 5
    assert [name for name in sorted(classes) if not re.search(rf"rect\.{name}\b[^{{]*\{{ fill: var", style)] == []


def test_bars_of_nothing_and_of_damaged_rows_are_empty() -> None:
    assert bars([], NOW) == []
    (bar,) = bars([checkpoint(state=CheckpointState.UNREADABLE)], NOW)
    assert (list(bar.phases), bar.took) == ([], timedelta(0))


def test_before_the_coordinator_listens_the_page_says_that_it_starts() -> None:
    with pytest.raises(CoordinatorLostError, match="starts"):
        Reader().jobs("")


def test_open_pages_share_an_answer_and_slow_ones_are_asked_for_less_often() -> None:
    time, asked = [100.0], []

    def ask(took: float) -> Callable[[], int]:
        def read() -> int:
            asked.append(took)
            time[0] += took
            return len(asked)

        return read

    reader = Reader(clock=lambda: time[0])
    assert [reader._shared("", "a", ask(0.01)) for _ in range(3)] == [1, 1, 1]
    time[0] += 1.1
    assert reader._shared("", "a", ask(2.0)) == 2
    time[0] += 39.0
    assert reader._shared("", "a", ask(0.01)) == 2
    time[0] += 2.0
    assert reader._shared("", "a", ask(0.01)) == 3
    for number in range(100):
        reader._shared("", str(number), ask(0.0))
    assert len(reader._kept) <= 64, "many jobs are not kept for ever"


def test_a_visitor_never_gets_the_answer_to_another_one() -> None:
    reader = Reader(clock=lambda: 0.0)
    answers = [reader._shared(visitor, "job", visitor.upper) for visitor in ("a", "b", "a", "")]
    assert answers == ["A", "B", "A", ""]


def test_a_sparkline_goes_from_0_to_the_highest_value_and_stays_inside() -> None:
    assert points([]) == points([5.0]) == "", "one value is no line"
    assert points([0, 10, 5]) == "1.0,15.0 30.0,1.0 59.0,8.0"
    assert points([0.0, 0.0]) == "1.0,15.0 59.0,15.0"
    for x, y in (one.split(",") for one in points([float(n % 7) for n in range(30)]).split()):
        assert 0 < float(x) < SPARKLINE_WIDTH
        assert 0 < float(y) < HEIGHT
