"""A checkpoint soon takes about the intended time, whatever a record costs, and always reads something."""

import itertools
import math
import random
import statistics
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from onceward.common.errors import ConfigurationError
from onceward.common.links import Links
from onceward.connectors.interfaces import JobContext, Plan
from onceward.protocol.values import JobName
from onceward.sources.kafka.control.metadata import LogEnd
from onceward.sources.kafka.driver.offsets import Limits, plan_ranges
from onceward.sources.kafka.driver.sizing import (
    AIM_BACK_TO_BACK,
    FIRST,
    GROWTH,
    LEAST,
    PART_OF_TIMEOUT,
    Ran,
    Sizing,
    first_sizing,
)
from onceward.sources.kafka.driver.source import KafkaSource
from onceward.sources.kafka.driver.subscription import Subscription
from onceward.sources.kafka.positions import Cursor, KafkaPositions, Partition, TopicPosition
from onceward.sources.kafka.rates import RateLimit
from tests.conftest import examples

TIMEOUT = 120.0
A_FEW = 8
"""Number of checkpoints in which the size grows a thousandfold."""
NEARLY = 1.2

enough = settings(max_examples=examples(50))
intervals = st.sampled_from([0.0, 0.25, 1.0, 5.0, 30.0])
fixed_costs = st.floats(0.0, 0.1)
speeds = st.floats(1e1, 1e6)
"""Offsets per second."""


@dataclass
class Machine:
    """A job on a machine with constant speed."""

    fixed: float
    each: float
    cores: int = 4

    def seconds(self, ranges: Sequence[int]) -> float:
        """All cores share the work, but one core reads a range."""
        return self.fixed + self.each * max(sum(ranges) / self.cores, max(ranges))


def sizing(interval: float = 1.0) -> Sizing:
    first = first_sizing(interval, TIMEOUT)
    assert first is not None
    return first


def taken(now: Sizing, backlog: Sequence[int]) -> list[int]:
    """Return the sizes of the ranges that a source plans for this backlog."""
    planned = plan(now, backlog)
    return [split["end"] - split["start"] for split in planned.splits]


def plan(now: Sizing | None, backlog: Sequence[int], **others: Any) -> Plan:
    topic = TopicPosition(id="i", partitions={n: Cursor(next=0) for n in range(len(backlog))})
    positions = KafkaPositions(cluster="main", cluster_id="c", topics={"t": topic})
    available = {Partition("t", n): waiting for n, waiting in enumerate(backlog)}
    return plan_ranges(positions, available, read=list(available), limits=Limits(sizing=now, **others), now=0)


def after(now: Sizing, ranges: Sequence[int], seconds: float, *, everything: bool = False) -> Sizing:
    return now.observe(ran(ranges, seconds, everything=everything))


def ran(ranges: Sequence[int], seconds: float, *, everything: bool = False, failed: bool = False) -> Ran:
    return Ran(
        offsets=sum(ranges),
        longest=max(ranges),
        ranges=sum(range_ > 0 for range_ in ranges),
        seconds=seconds,
        everything=everything,
        failed=failed,
    )


def work_off(
    now: Sizing, machine: Machine, checkpoints: int, backlog: Sequence[int] = (10**12,) * 4
) -> tuple[Sizing, list[float]]:
    """Return the durations of the checkpoints of an endless backlog."""
    took = []
    for _ in range(checkpoints):
        ranges = taken(now, backlog)
        took.append(machine.seconds(ranges))
        now = after(now, ranges, took[-1])
    return now, took


@enough
@given(intervals, fixed_costs, speeds)
def test_a_steady_job_reaches_its_target_duration_within_a_few_checkpoints(
    interval: float, fixed: float, speed: float
) -> None:
    now, took = work_off(sizing(interval), Machine(fixed, 1 / speed), A_FEW)
    assume(now.aim * speed >= 100)  # otherwise whole offsets cannot be cut so finely
    target = max(now.aim, 2 * fixed)
    offset = 1 / speed  # sizes are whole
    # the fastest machine with the highest fixed cost comes to 1 / 1.423 of its target, and grows on
    assert target / 1.45 - offset <= took[-1] <= target * NEARLY or now.offsets >= FIRST * GROWTH**A_FEW / 8


@enough
@given(intervals, fixed_costs, speeds)
def test_only_the_first_checkpoint_may_exceed_the_target_duration(interval: float, fixed: float, speed: float) -> None:
    """A checkpoint of the minimum size, or of twice that to measure a range's fixed cost, may also take longer."""
    now = sizing(interval)
    _, took = work_off(now, Machine(fixed, 1 / speed), 20)
    most = max(now.aim, 2 * fixed) * NEARLY + fixed
    least = fixed + LEAST / speed
    assert all(seconds <= max(most, 2.5 * least) for seconds in took[1:])


@enough
@given(intervals, fixed_costs, speeds)
def test_a_steady_job_stays_at_its_target(interval: float, fixed: float, speed: float) -> None:
    assume(sizing(interval).aim * speed >= 100)
    machine = Machine(fixed, 1 / speed)
    now, _ = work_off(sizing(interval), machine, 40)
    _, took = work_off(now, machine, 40)
    target = max(now.aim, 2 * fixed)
    assert all(target * 0.6 <= seconds <= target * NEARLY for seconds in took)


@enough
@given(st.lists(st.floats(0.7, 1.3), min_size=40, max_size=40), st.floats(1e4, 1e6))
def test_times_that_vary_by_a_third_make_no_size_run_away(noise: list[float], speed: float) -> None:
    machine, now = Machine(0.05, 1 / speed), sizing(1.0 / NEARLY)
    for number, factor in enumerate(noise):
        ranges = taken(now, [10**12] * 4)
        if number > A_FEW:
            assert 0.25 <= machine.seconds(ranges) <= 2.5
        now = after(now, ranges, machine.seconds(ranges) * factor)


@enough
@given(st.floats(3.0, 1000.0), st.floats(1e3, 1e6))
def test_a_sudden_slowdown_is_answered_at_once(times: float, speed: float) -> None:
    now, _ = work_off(sizing(), Machine(0.1, 1 / speed), 20)
    slow = Machine(0.1, times / speed)
    assume(speed / times > 100)
    steps = math.ceil(math.log(times * NEARLY, GROWTH))
    _, took = work_off(now, slow, steps + 1)
    assert took[0] > 2 * now.aim
    assert took[steps] <= now.aim * NEARLY + 0.1


@enough
@given(st.floats(3.0, 1000.0), st.floats(1e2, 1e5))
def test_a_job_that_becomes_quicker_carries_more_within_a_few_checkpoints(times: float, speed: float) -> None:
    now, _ = work_off(sizing(), Machine(0.1, 1 / speed), 20)
    _, took = work_off(now, Machine(0.1, 1 / speed / times), 6)
    assert took[-1] >= now.aim / 1.4
    assert max(took) <= now.aim * NEARLY


@pytest.mark.parametrize("failed", [False, True])
@pytest.mark.parametrize("interval", [0.05, 0.25, 1.0, 5.0, 30.0])
def test_one_slow_checkpoint_costs_the_next_few_their_size_and_leaves_nothing_behind(
    interval: float, failed: bool
) -> None:
    """Within these checkpoints the rate recovers to at least half of what it was, whatever the costs."""
    few = 15
    for fixed, speed, partitions in itertools.product((0.0, 0.05, 0.3, 1.0, 3.0), (1e2, 1e4, 1e6), (1, 16)):
        machine, backlog = Machine(fixed, 1 / speed), (10**12,) * partitions
        steady, _ = work_off(sizing(interval), machine, 40, backlog)
        before = rate(steady, machine, backlog)
        ranges = taken(steady, backlog)
        for slow in (5.0, 60.0, 119.0):
            now = steady.observe(ran(ranges, machine.seconds(ranges) + slow, failed=failed))
            for _ in range(few):
                now, _ = work_off(now, machine, 1, backlog)
                if rate(now, machine, backlog) >= before / 2:
                    break
            else:
                pytest.fail(f"{fixed=} {speed=} {partitions=} {slow=}")


def rate(now: Sizing, machine: Machine, backlog: Sequence[int]) -> float:
    ranges = taken(now, backlog)
    return sum(ranges) / machine.seconds(ranges)


@pytest.mark.parametrize("interval", [0.05, 0.25, 1.0])
@pytest.mark.parametrize("fixed", [0.9, 1.0, 1.1, 1.5, 3.0])
@pytest.mark.parametrize("speed", [1e3, 1e6])
def test_where_most_of_the_time_is_fixed_a_good_part_of_it_goes_into_records(
    interval: float, fixed: float, speed: float
) -> None:
    """This includes an empty checkpoint that takes exactly the interval, which looks like the right size."""
    machine = Machine(fixed, 1 / speed, cores=1)
    now, _ = work_off(sizing(interval), machine, 40, backlog=(10**12,))
    _, took = work_off(now, machine, 40, backlog=(10**12,))
    assert all(1.15 * fixed <= seconds <= 2.4 * fixed for seconds in took)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("interval", "fixed", "speed"), [(1.0, 0.05, 1e4), (0.25, 0.3, 1e4), (5.0, 0.1, 1e3)])
def test_records_of_any_size_reach_the_target_duration_in_the_median(
    interval: float, fixed: float, speed: float, seed: int
) -> None:
    """The cost of a record varies from one checkpoint to the next, occasionally by far more."""
    chance, now, took = random.Random(seed), sizing(interval), []
    for _ in range(300):
        machine = Machine(fixed, chance.lognormvariate(0.0, 0.7) / speed)
        now, seconds = work_off(now, machine, 1)
        took += seconds
    assert 0.5 <= statistics.median(took[20:]) / max(now.aim, 2 * fixed) <= 1.3
    assert max(took) <= TIMEOUT


@pytest.mark.parametrize("part", [0.3, 0.5, 0.7])
def test_time_that_smaller_checkpoints_do_not_shorten_makes_them_no_smaller_in_the_end(part: float) -> None:
    """As with a quota of the brokers, which holds each fetch back, or a slow start of each task."""
    chance, now = random.Random(7), sizing()
    for _ in range(100):
        now = now.observe(ran([now.offsets], part * TIMEOUT * chance.uniform(0.95, 1.05)))
    assert now.offsets >= 1_000, "it had shrunk to one record for each of these times"


def test_what_a_quota_holds_back_grows_to_a_quarter_of_the_timeout() -> None:
    """Each checkpoint fetches the batches again in which its ranges begin and end, a second in this machine."""
    now, took = sizing(), []
    for _ in range(12):
        seconds = 1.0 + now.offsets / 200
        now = now.observe(replace(ran([now.offsets], seconds), held=0.9 * seconds))
        took.append(seconds)
    assert took[-1] == pytest.approx(TIMEOUT * PART_OF_TIMEOUT, rel=0.1)
    assert max(took) < TIMEOUT
    assert now.fixed == 0.0, "the time is no measure of a size"


def test_a_quota_that_batches_use_up_whatever_is_read_of_them_is_left_behind_in_one_step() -> None:
    """Each of two ranges fetches one or two batches of 1,000 records, 5 s each, however little it reads."""
    small = ran([170, 170], 10.0)
    now = sizing().observe(replace(small, held=9.9))
    assert now.total(2) >= GROWTH * small.offsets


@enough
@given(st.lists(st.tuples(st.integers(1, 10**9), st.floats(0, 1e6), st.booleans(), st.booleans()), max_size=60))
def test_something_is_always_read_whatever_was_seen(seen: list[tuple[int, float, bool, bool]]) -> None:
    now = sizing()
    for offsets, seconds, everything, failed in seen:
        former = now
        now = now.observe(ran([offsets], seconds, everything=everything, failed=failed))
        assert 1 <= now.offsets <= max(former.offsets, GROWTH * offsets)
        assert 1 <= now.longest <= max(former.longest, GROWTH * offsets)
        assert 0 <= now.fixed <= now.longest_aim * 1e9
        assert now.aim <= now.target <= now.longest_aim + min(now.fixed, 2 * now.longest_aim)
    assert sum(taken(now, [5] * 3)) >= 1


@enough
@given(st.floats(0.15, 3.0), st.floats(1e4, 1e6))
def test_an_interval_shorter_than_an_empty_checkpoint_does_not_make_ranges_vanish(fixed: float, speed: float) -> None:
    """A good part of the time still goes into records."""
    now, took = work_off(sizing(0.05), Machine(fixed, 1 / speed, cores=1), 50, backlog=(10**12,))
    assert all(1.15 * fixed <= seconds <= 2.6 * fixed for seconds in took[-10:])
    assert now.target <= 2.2 * fixed


def test_a_pause_of_the_machine_keeps_room_for_the_records_that_arrived_meanwhile() -> None:
    now, _ = work_off(sizing(), Machine(0.1, 1e-6), 20)
    paused = after(now, [300, 100], 5.0, everything=True)
    assert sum(taken(paused, [10**6] * 2)) == 800
    cut = after(now, [300, 100], 5.0)
    assert sum(taken(cut, [10**6] * 2)) == 80


def test_a_quick_checkpoint_of_little_data_forgets_nothing() -> None:
    now, _ = work_off(sizing(), Machine(0.1, 1e-6), 20)
    assert after(now, [3, 0], 0.1, everything=True).offsets == now.offsets


@enough
@given(st.integers(1, 10**7), st.floats(0.0, 120.0))
def test_a_failed_checkpoint_is_followed_by_at_most_half_of_it(offsets: int, seconds: float) -> None:
    now = Sizing(aim=1.0, longest_aim=30.0, offsets=10**7, longest=10**7)
    then = now.observe(ran([offsets], seconds, failed=True))
    assert then.offsets <= max(1, offsets / 2)
    assert then.offsets <= max(1, offsets / max(seconds, 1e-9))


def test_a_job_that_can_only_take_small_checkpoints_gets_through_after_failures() -> None:
    """A record takes a second: the first checkpoint runs into its timeout, the next one does not."""
    now = sizing()
    ranges = taken(now, [10**6])
    assert ranges == [1000]
    now = now.observe(ran(ranges, TIMEOUT, failed=True))
    assert sum(taken(now, [10**6])) == LEAST // 2


def test_the_least_that_is_read_comes_back_when_checkpoints_are_quick_again() -> None:
    now = sizing()
    for _ in range(6):
        now = now.observe(ran(taken(now, [10**6]), TIMEOUT, failed=True))
    assert sum(taken(now, [10**6])) == 1
    for _ in range(8):
        now = after(now, taken(now, [10**6]), 0.01)
    assert now.least == LEAST
    slow = now.longest_aim * 0.6 / LEAST  # twice as many would run too long
    now = after(now, [LEAST], now.longest_aim * 1.1)
    assert now.least == LEAST // 2
    assert after(now, [LEAST // 2], slow * LEAST).least == LEAST // 2


@enough
@given(fixed_costs, st.floats(1e3, 1e5), st.lists(st.sampled_from([1, 4, 16]), min_size=2, max_size=6))
def test_a_backlog_that_moves_between_one_partition_and_many_never_makes_a_checkpoint_twice_as_long(
    fixed: float, speed: float, shapes: list[int]
) -> None:
    machine, now = Machine(fixed, 1 / speed), sizing()
    for partitions in shapes:
        now, took = work_off(now, machine, 12, backlog=(10**12,) * partitions)
        assert max(took) <= 2 * now.aim + fixed + FIRST / speed
        assert took[-1] >= 0.25


@enough
@given(st.lists(st.integers(1, 10**9), min_size=2, max_size=12), st.integers(12, 10**6), st.integers(12, 10**6))
def test_every_partition_gets_its_part_beside_one_that_is_far_behind(
    backlog: list[int], offsets: int, longest: int
) -> None:
    ranges = taken(Sizing(aim=1.0, longest_aim=30.0, offsets=offsets, longest=longest, least=0), backlog)
    assert sum(ranges) == min(offsets, sum(min(waiting, longest) for waiting in backlog))
    assert max(ranges) <= longest
    fair = min(longest, offsets // len(backlog))
    assert all(range_ >= min(waiting, fair) for range_, waiting in zip(ranges, backlog, strict=True))


@enough
@given(st.floats(1e2, 1e7), fixed_costs)
def test_a_backlog_of_hours_never_runs_into_the_timeout_even_when_all_becomes_three_times_slower(
    speed: float, fixed: float
) -> None:
    now, took = work_off(sizing(30.0), Machine(fixed, 1 / speed), 20)
    assert max(took) < TIMEOUT / 3
    _, slower = work_off(now, Machine(3 * fixed, 3 / speed), 20)
    assert max(slower) < TIMEOUT


@pytest.mark.parametrize(
    ("interval", "aim"),
    [(0.0, AIM_BACK_TO_BACK), (0.25, 0.25), (10.0, 10.0), (3600.0, TIMEOUT * PART_OF_TIMEOUT)],
)
def test_the_aim_is_the_interval_and_well_below_the_timeout(interval: float, aim: float) -> None:
    assert sizing(interval).aim == aim


def test_without_an_interval_nothing_is_aimed_at() -> None:
    assert first_sizing(None, TIMEOUT) is None
    planned = plan(None, [10**6, 5])
    assert planned.records == 10**6 + 5
    assert planned.sizing == {"sized_by": "everything"}


def test_a_plan_names_what_limited_its_size() -> None:
    cut = plan(sizing(), [10**6, 10**6])
    assert cut.sizing == {"sized_by": "adaptive", "limit": FIRST, "range_limit": FIRST, "aim_seconds": 1.0}
    assert plan(sizing(), [10, 20]).sizing["sized_by"] == "everything"


def test_input_left_by_the_controller_alone_is_read_at_once() -> None:
    """Other limits set how fast a job may read, and so does the interval."""
    much, little = [10**6, 10**6], [10, 20]
    assert plan(sizing(), much).cut_for_time
    assert not plan(sizing(), little).cut_for_time
    assert not plan(None, much).cut_for_time
    assert not plan(sizing(), much, offsets=1_500).cut_for_time
    assert not plan(sizing(), much, rate=RateLimit(10.0)).cut_for_time


@pytest.mark.parametrize("how", ["begins", "is opened again"])
def test_a_driver_begins_small(how: str) -> None:
    source, opened = _source()
    if how == "is opened again":
        for _ in range(5):
            source.observe_run(_planned(source), 0.001)
        assert sum(_ranges(_planned(source))) > FIRST
        opened()
    assert sum(_ranges(_planned(source))) == FIRST


def test_measurements_size_the_next_plan_and_can_be_switched_off() -> None:
    source, _ = _source()
    first = _planned(source)
    source.observe_run(first, 0.1)
    assert sum(_ranges(_planned(source))) == FIRST * GROWTH
    source.observe_run(_planned(source), 100.0, failed=True)
    assert sum(_ranges(_planned(source))) == FIRST * GROWTH / 100
    off, _ = _source(adaptive=False)
    off.observe_run(_planned(off), 100.0)
    assert sum(_ranges(_planned(off))) == 10**6
    with pytest.raises(ConfigurationError, match="adaptive"):
        _source(adaptive="no")


def test_a_quota_is_shown_until_a_checkpoint_is_not_held_back() -> None:
    links = Links()
    source, _ = _source(links=links)
    source.observe_run(_planned(source), 20.0, held=15.0)
    (waits,) = links.troubles()
    assert (waits.link, waits.held) == ("a quota of cluster 'main'", True)
    assert "15 of the last 20 s" in waits.why
    source.observe_run(_planned(source), 20.0, failed=True)
    assert links.troubles(), "a failure says nothing of it"
    source.observe_run(_planned(source), 1.0, held=0.2)
    assert not links.troubles()


class Backlogged(Subscription):
    """A subscription to four partitions whose brokers always have a million more records."""

    def look_for_partitions(self, base: KafkaPositions) -> None:
        pass

    def available(self, positions: KafkaPositions, read: Collection[Partition]) -> dict[Partition, LogEnd]:
        return {partition: LogEnd(cursor.next + 250_000, None) for partition, cursor in positions}


@pytest.fixture(autouse=True)
def backlogged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onceward.sources.kafka.driver.source.Subscription", Backlogged)


def _source(*, adaptive: Any = True, links: Links | None = None) -> tuple[KafkaSource, Callable[[], None]]:
    source = KafkaSource("localhost:1", ["t"], adaptive=adaptive, mirror_offsets=False)
    context = JobContext(
        job=JobName("j"),
        checkpoint_timeout=timedelta(seconds=TIMEOUT),
        checkpoint_interval=timedelta(seconds=1),
        links=links or Links(),
    )
    source.open(context)
    return source, lambda: source.open(context)


def _planned(source: KafkaSource) -> Plan:
    topic = TopicPosition(id="i", partitions={n: Cursor(next=0) for n in range(4)})
    return source.plan(KafkaPositions(cluster="main", cluster_id="c", topics={"t": topic}).to_document())


def _ranges(planned: Plan) -> list[int]:
    return [split["end"] - split["start"] for split in planned.splits]
