"""The positions that the coordinator refuses, through the checker that it loads by entry point."""

import subprocess
import sys

import pytest

from onceward.protocol.values import Document
from onceward.sources.kafka.positions import check_positions
from tests.support.documents import author


def positions(next_offset: int = 5, epoch: int | None = 3, **changes: object) -> Document:
    topics = {"orders": {"id": "t1", "partitions": {"0": {"next": next_offset, "end": None, "epoch": epoch}}}}
    body = {"cluster": "main", "cluster_id": "c1", "bound": None, "topics": topics, **changes}
    return Document(kind="kafka-positions", version=2, body=body)


@pytest.mark.parametrize("after", [positions(5), positions(6), positions(6, 4), positions(6, None)])
def test_positions_may_stay_or_go_forwards(after: Document) -> None:
    check_positions(after, positions(5), author())
    check_positions(after, None, author())


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (positions(4), "orders-0 goes backwards, from offset 5 to 4"),
        (positions(6, 2), "orders-0 goes backwards, from leader epoch 3 to 2"),
        (positions(topics={}), "topic orders of the base is missing"),
        (positions(cluster_id="c2"), "cluster c2"),
        (
            positions(topics={"orders": {"id": "t2", "partitions": {"0": {"next": 9, "end": None, "epoch": 3}}}}),
            "recreated",
        ),
        (positions(topics={"orders": {"id": "t1", "partitions": {}}}), "orders-0 of the base is missing"),
        (positions(-1), "not a number"),
        (Document(kind="kafka-positions", version=3, body=positions().body), "version 3"),
    ],
)
def test_positions_that_would_lose_or_repeat_records_are_refused(after: Document, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_positions(after, positions(5), author())


def test_malformed_positions_are_refused_with_the_fault() -> None:
    with pytest.raises(ValueError, match="damaged") as refused:
        check_positions(positions(-1), positions(5), author())
    assert "stored" not in str(refused.value), "they come from the driver"
    with pytest.raises(ValueError, match="those of the base cannot be read"):
        check_positions(positions(5), positions(-1), author())


def test_the_kinds_and_their_checkers_load_without_a_client() -> None:
    """The coordinator's core install has no Kafka client."""
    program = """
import sys
for name in ("confluent_kafka", "kafka", "pyarrow", "pyspark"):
    sys.modules[name] = None
from onceward.coordinator.service.documents import Checkers
from onceward.coordinator.service.kinds import installed_kinds, part
Checkers.installed()
found = {document: part(name, where, "checked") for name, kind in installed_kinds("checked").items()
         for document, where in {**kind.documents, **kind.positions}.items()}
assert {"kafka-positions", "kafka-transaction", "spark-batch"} <= set(found), found
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
