"""The reader of staying tasks, on librdkafka's own mock of brokers: real clients and sockets, no server to start.

What it reads after faults is tested on real brokers (tests/integration).
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from confluent_kafka import Producer

from onceward.connections.cluster import KafkaCluster
from onceward.sources.kafka.executor.follower import KafkaFollower
from onceward.sources.kafka.executor.following import KafkaFollowing
from onceward.sources.kafka.executor.reader import KafkaSplitReader
from tests.support.waiting import wait_until

PACE = {"interval": 0.05, "hold": 60.0}


class Log:
    """A topic of four partitions on a mock of a broker."""

    topic = "orders"

    def __init__(self) -> None:
        self._producer = Producer({"test.mock.num.brokers": 1, "log_level": 0})
        found = self._producer.list_topics(self.topic, timeout=30)
        assert len(found.topics[self.topic].partitions) == 4
        self.servers = ",".join(f"{broker.host}:{broker.port}" for broker in found.brokers.values())

    def fill(self, partition: int, first: int, end: int) -> None:
        for number in range(first, end):
            self._producer.produce(self.topic, b"%d-%d" % (partition, number), partition=partition)
        assert self._producer.flush(30) == 0


@pytest.fixture
def log() -> Log:
    """Partitions 0 to 3 hold 5,000, 300, 40 and no records."""
    made = Log()
    for partition, records in enumerate((5_000, 300, 40)):
        made.fill(partition, 0, records)
    return made


class Task:
    """Runs a follower as a staying task does: one thread reads, the test cuts."""

    def __init__(self, follower: KafkaFollower, heard: Sequence[str]) -> None:
        self.follower, self._heard = follower, heard
        self.taken: dict[int, list[str]] = {}
        """Values by partition, since the last cut."""

    @property
    def news(self) -> int:
        return len(self._heard)

    def total(self) -> int:
        return sum(map(len, self.taken.values()))

    def until_cut(self, allowed: Sequence[int] = (), when: Callable[[], bool] = lambda: True) -> dict[str, Any]:
        """Read until ``when``, then cut; return what was reached."""
        self.taken = {}

        def read() -> None:
            for batch in self.follower.batches():
                for partition, value in zip(batch["partition"].to_pylist(), batch["value"].to_pylist(), strict=True):
                    self.taken.setdefault(partition, []).append(value.decode())

        reading = threading.Thread(target=read, daemon=True)
        reading.start()
        try:
            wait_until(when, "the follower has read", 60)
        finally:
            self.follower.cut(allowed)
            reading.join(60)
        assert not reading.is_alive(), "a cut does not wait"
        return self.follower.reached()


@pytest.fixture
def follow(log: Log) -> Iterator[Callable[..., Task]]:
    made: list[Task] = []

    def following(*ranges: Mapping[str, Any], allowed: Sequence[int] | None = None, rate: float | None = None) -> Task:
        reader = KafkaSplitReader(cluster=KafkaCluster(log.servers), group_id="g")
        split = {"ranges": [{"topic": log.topic, **each} for each in ranges]}
        heard: list[str] = []
        follower = KafkaFollowing(reader=reader, rate=rate)(
            {**split, **({} if allowed is None else {"allowed": allowed})},
            frozenset({"partition", "value"}),
            PACE,
            lambda: heard.append("news"),
        )
        made.append(Task(follower, heard))
        return made[-1]

    yield following
    for task in made:
        task.follower.close()


def from_(partition: int, start: int = 0, **more: int) -> dict[str, int]:
    return {"partition": partition, "start": start, **more}


def values(partition: int, first: int, end: int) -> list[str]:
    return [f"{partition}-{number}" for number in range(first, end)]


def ends(reached: Mapping[str, Any]) -> list[int]:
    return [each["end"] for each in reached["ranges"]]


def test_everything_is_read_once_from_cut_to_cut_without_limits(follow: Callable[..., Task]) -> None:
    task = follow(from_(0, 4_000), from_(1))
    first = task.until_cut(when=lambda: task.total() > 0)
    taken = task.taken
    second = task.until_cut(when=lambda: sum(map(len, taken.values())) + task.total() == 1_300)
    for partition, start, end in ((0, 4_000, 5_000), (1, 0, 300)):
        assert taken.get(partition, []) + task.taken.get(partition, []) == values(partition, start, end)
    assert ends(second) == [5_000, 300]
    assert [each["start"] for each in second["ranges"]] == ends(first)


@pytest.mark.parametrize("allowed", [None, [1_000]], ids=["without limits", "within limits"])
def test_the_first_batch_after_a_cut_has_more_than_the_record_that_was_waited_for(
    follow: Callable[..., Task], allowed: list[int] | None
) -> None:
    """It begins the transaction; what it lacks is read and written after the next cut."""
    task = follow(from_(1), allowed=allowed)
    assert next(task.follower.batches()).num_rows > 1


def test_no_checkpoint_has_more_than_its_shares_and_the_next_one_continues_there(follow: Callable[..., Task]) -> None:
    task = follow(from_(0), from_(1), allowed=[700, 60])
    for number in range(1, 5):
        reached = task.until_cut([700, 60], when=lambda: task.total() == 760)
        assert ends(reached) == [700 * number, 60 * number]
        assert task.taken == {
            0: values(0, 700 * (number - 1), 700 * number),
            1: values(1, 60 * (number - 1), 60 * number),
        }
    assert reached["lags"] == [5_000 - 2_800, 300 - 240]
    assert task.news == 4, "one for each checkpoint"


def test_a_partition_without_a_share_asks_for_each_cut_once_and_stands_still(follow: Callable[..., Task]) -> None:
    task = follow(from_(2), allowed=[0])
    for number, allowed in ((1, 0), (2, 25)):
        reached = task.until_cut([allowed], when=lambda number=number: task.news == number)  # type: ignore[misc]
        assert (ends(reached), task.taken) == ([0], {})
    assert ends(task.until_cut([0], when=lambda: task.total() == 25)) == [25]
    assert task.taken == {2: values(2, 0, 25)}
    assert task.news == 3


def test_a_partition_at_its_share_keeps_no_other_one_waiting(follow: Callable[..., Task], log: Log) -> None:
    task = follow(from_(0), from_(3), allowed=[10, 1_000])
    filled = False

    def read() -> bool:
        nonlocal filled
        if not filled and task.total() == 10:
            filled = True
            log.fill(3, 0, 50)
        return task.total() == 60

    assert ends(task.until_cut(when=read)) == [10, 50]
    assert task.taken == {0: values(0, 0, 10), 3: values(3, 0, 50)}


def test_a_lag_is_known_of_a_partition_that_was_at_its_end_and_has_no_share_now(
    follow: Callable[..., Task], log: Log
) -> None:
    log.fill(3, 0, 1)
    task = follow(from_(2, 40), from_(3), allowed=[5, 5])
    assert ends(task.until_cut([0, 0], when=lambda: task.total() == 1)) == [40, 1]
    log.fill(3, 1, 4)
    news = task.news
    assert ends(task.until_cut([5, 5], when=lambda: task.news > news)) == [40, 1]
    wait_until(lambda: task.follower.reached()["lags"][1] == 3, "the lag is known")


def test_a_rate_is_kept_by_each_partition_and_by_tasks_that_follow_each_other(follow: Callable[..., Task]) -> None:
    """One record per partition at the start, the second one only after 1,000 s."""
    start = [0, 0]
    for number in range(1, 3):
        task = follow(from_(0, start[0]), from_(1, start[1]), rate=0.001)
        start = ends(task.until_cut(when=lambda task=task: task.total() == 2))  # type: ignore[misc]
        assert start == [number, number]
        assert ends(task.until_cut()) == start


def test_a_rate_lets_all_records_pass_in_time(follow: Callable[..., Task]) -> None:
    task = follow(from_(2), rate=500.0)
    assert ends(task.until_cut(when=lambda: task.total() == 40)) == [40]
    assert task.taken == {2: values(2, 0, 40)}


def test_a_bounded_range_ends_within_its_limits(follow: Callable[..., Task]) -> None:
    task = follow(from_(2, end=30), from_(1, end=10), allowed=[20, 20])
    assert ends(task.until_cut([20, 20], when=lambda: task.total() == 30)) == [20, 10]
    assert ends(task.until_cut([20, 20], when=lambda: task.total() == 10)) == [30, 10]
    task.until_cut(when=lambda: task.news == 3)  # two checkpoints with records, and the end
    assert task.total() == 0
