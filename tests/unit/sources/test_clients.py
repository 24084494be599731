"""A range gets a client whose fetches are not much larger than the range, as far as its size is known."""

from types import SimpleNamespace

import pytest

from onceward import KafkaCluster
from onceward.sources.kafka.client import Records
from onceward.sources.kafka.executor import clients
from onceward.sources.kafka.executor.clients import (
    CAREFUL,
    FETCHES,
    FIRST_LOOK,
    LARGE,
    Fetch,
    fetch_for,
    held_back,
    noticed,
)
from onceward.sources.kafka.executor.reader import KafkaSplitReader
from tests.unit.sources.memory import Memory

SMALL, MEDIUM, _ = FETCHES


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for known in ("_sizes", "_held_s", "_held_at"):
        monkeypatch.setattr(clients, known, {})


def records(*sizes: int | None) -> Records:
    found = [(offset, None, None if size is None else bytes(size)) for offset, size in enumerate(sizes)]
    return Memory().records("t", 0, found)


def test_nothing_is_expected_of_a_topic_that_was_never_read() -> None:
    noticed(records(10))
    assert fetch_for("t", 1) == SMALL
    assert fetch_for("other", 1_000) == FIRST_LOOK
    assert fetch_for("other", 1_001) == LARGE


@pytest.mark.parametrize(
    ("size", "offsets", "fetch"),
    [
        (108, 1_024, SMALL),
        (108, 1_025, MEDIUM),
        (108, 8_192, MEDIUM),
        (108, 8_193, LARGE),
        (100_000, 1, SMALL),
        (100_000, 2, MEDIUM),
        (2_000_000, 1, LARGE),
    ],
)
def test_ranges_are_sized_by_bytes_and_not_by_offsets(size: int, offsets: int, fetch: Fetch) -> None:
    noticed(records(*[size] * 3))
    assert fetch_for("t", offsets) == fetch


def test_nothing_is_fetched_ahead_for_a_while_after_brokers_held_a_fetch_back(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1_000.0
    monkeypatch.setattr(clients, "time", SimpleNamespace(monotonic=lambda: now))
    slow, other = KafkaCluster("slow:9092"), KafkaCluster("other:9092")
    held_back(slow, 2.0)
    assert (fetch_for("t", 1, slow), fetch_for("t", 1, other)) == (CAREFUL, FIRST_LOOK)
    reader = KafkaSplitReader(cluster=slow, group_id="g")
    assert reader.settings(CAREFUL)["socket.timeout.ms"] == "60000", "held back for longer than others wait"
    given = KafkaCluster("slow:9092", config={"socket.timeout.ms": "5000"})
    assert KafkaSplitReader(cluster=given, group_id="g").settings(CAREFUL)["socket.timeout.ms"] == "5000"
    now += 60
    assert fetch_for("t", 1, slow) == FIRST_LOOK


def test_tombstones_are_small_and_not_nothing() -> None:
    noticed(records(None, None))
    assert fetch_for("t", 6_000) == SMALL
    assert fetch_for("t", 7_000) == MEDIUM


def test_a_range_takes_few_fetches_unless_it_is_worth_the_largest() -> None:
    for fetch in FETCHES:
        assert fetch == LARGE or fetch.most <= 4 * fetch.size


def test_the_users_fetch_settings_apply_to_every_range() -> None:
    tuned = KafkaSplitReader(
        cluster=KafkaCluster("localhost:9092", config={"fetch.message.max.bytes": 5_000_000}), group_id="g"
    )
    for fetch in FETCHES:
        settings = tuned.settings(fetch)
        assert settings["fetch.message.max.bytes"] == "5000000"
        assert settings["queued.min.messages"] == str(fetch.ahead)
