"""How ``onceward verify`` treats brokers that do not answer, or not yet."""

import socket
from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException

from onceward import KafkaCluster
from onceward.operate.verify import cluster
from onceward.operate.verify.cluster import ClusterView
from onceward.operate.verify.history import Lane


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("_ANSWER_S", "_LISTED_S", "_PATIENCE_S"):
        monkeypatch.setattr(cluster, limit, 0.3)


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def reporting(view: ClusterView, offsets: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the client of ``view`` report these ends of the only partition, one after the other."""

    def list_offsets(wanted: dict[Any, Any], **_: Any) -> dict[Any, Any]:
        answer: Future[Any] = Future()
        answer.set_result(SimpleNamespace(offset=offsets.pop(0)))
        return dict.fromkeys(wanted, answer)

    topic = SimpleNamespace(error=None, partitions={0: None})
    listed = SimpleNamespace(topics={"out": topic})
    monkeypatch.setattr(view, "_admin", SimpleNamespace(list_topics=lambda **_: listed, list_offsets=list_offsets))


def test_an_answer_without_an_offset_is_retried_and_is_no_empty_log(monkeypatch: pytest.MonkeyPatch) -> None:
    view = ClusterView(KafkaCluster("localhost:1"))
    reporting(view, [OFFSET_INVALID, 1834], monkeypatch)
    assert view.beginnings(["out"]) == {Lane("out", 0): 1834}


def test_without_any_offset_the_end_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    view = ClusterView(KafkaCluster("localhost:1"))
    reporting(view, [OFFSET_INVALID] * 1000, monkeypatch)
    with pytest.raises(KafkaException) as raised:
        view.ends(["out"])
    assert raised.value.args[0].code() == KafkaError._TRANSPORT


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL"])
def test_brokers_that_answer_nothing_end_the_question_for_open_transactions(silent: str, protocol: str) -> None:
    view = ClusterView(KafkaCluster(silent, config={"security.protocol": protocol}))
    with pytest.raises(KafkaException) as raised:
        view.open_transactions("orders")
    assert raised.value.args[0].code() == KafkaError._TIMED_OUT
