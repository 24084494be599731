"""Ranges that hold little get a client with small fetches; whatever is not known does not."""

import pytest

from connections import KafkaCluster
from sources.kafka import clients
from sources.kafka.client import Records
from sources.kafka.clients import SHORT_SETTINGS, is_short, noticed
from sources.kafka.reader import KafkaSplitReader
from tests.unit.sources.memory import Memory


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "_sizes", {})


def records(*sizes: int | None) -> Records:
    found = [(offset, None, None if size is None else bytes(size)) for offset, size in enumerate(sizes)]
    return Memory().records("t", 0, found)


def test_nothing_is_expected_of_a_topic_that_was_never_read() -> None:
    noticed(records(10))
    assert is_short("t", 1)
    assert not is_short("other", 1)


def test_a_range_is_short_by_its_bytes_and_not_by_its_offsets() -> None:
    noticed(records(*[108] * 500))
    assert is_short("t", 1_024)
    assert not is_short("t", 1_025)
    noticed(records(*[100_000] * 3))
    assert is_short("t", 1)
    assert not is_short("t", 2)


def test_tombstones_are_small_and_not_nothing() -> None:
    noticed(records(None, None))
    assert is_short("t", 6_000)
    assert not is_short("t", 7_000)


def test_what_the_user_says_of_fetches_counts_for_every_range() -> None:
    tuned = KafkaSplitReader(
        cluster=KafkaCluster("localhost:9092", config={"fetch.message.max.bytes": 5_000_000}), group_id="g"
    )
    for short in (False, True):
        assert tuned.settings(short=short)["fetch.message.max.bytes"] == "5000000"
    assert tuned.settings(short=True)["queued.min.messages"] == SHORT_SETTINGS["queued.min.messages"]
