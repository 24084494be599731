"""A backlog on the real broker is worked off in ranges that begin small and follow the time that they take."""

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from coordinator import CheckpointSettings
from coordinator.pipeline.journal import EVENTS_VARIABLE
from coordinator.protocol.events import CloseReason
from sinks import KafkaSink
from sources import KafkaSource
from sources.kafka.sizing import FIRST, GROWTH, LEAST
from tests.integration.sparkless import SparklessPipeline
from tests.integration.tools import Topics, assert_exactly_once

pytestmark = pytest.mark.timeout(300)

BACKLOG = (40_000, 9_000, 500)
"""Records per partition: one is far behind, one hardly."""


def work_off(topics: Topics, job: str, directory: Path, **source: Any) -> list[dict[str, Any]]:
    """What the journal tells of the job's checkpoints."""
    given, output = topics.create("in", len(BACKLOG)), topics.create("out", 2)
    for partition, records in enumerate(BACKLOG):
        topics.fill(
            given, [b"%d-%d" % (partition, n) for n in range(records)], partition=partition, key=b"%d" % partition
        )
    pipeline = SparklessPipeline(
        job=job,
        source=KafkaSource(topics.servers, topics=[given], start="earliest", end="latest", **source),
        sink=KafkaSink(topics.servers, topic=output),
        settings=CheckpointSettings(interval="300ms"),
        state_dir=directory / "state",
    )
    assert pipeline.run() is CloseReason.FINISHED
    assert_exactly_once(topics, given, output)
    lines = map(json.loads, (directory / "events").read_text().splitlines())
    return [line for line in lines if line["event"] == "pre-committed"]


def test_a_backlog_begins_small_grows_with_the_measured_speed_and_says_so(
    topics: Topics, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EVENTS_VARIABLE, str(tmp_path / "events"))
    checkpoints = work_off(topics, job, tmp_path)
    assert sum(one["read"] for one in checkpoints) == sum(BACKLOG)
    assert (checkpoints[0]["read"], checkpoints[0]["sized_by"]) == (FIRST, "adaptive")
    assert all(one["read"] <= one["limit"] for one in checkpoints)
    assert checkpoints[-1]["sized_by"] == "everything"
    grew = 0
    for former, one in itertools.pairwise(checkpoints):
        assert one["limit"] <= max(former["limit"], GROWTH * former["read"])
        if former["seconds"] > former["aim_seconds"] * 1.2:  # it ran long: the next one is smaller, at once
            assert one["limit"] < former["limit"] or one["limit"] <= LEAST * len(BACKLOG)
        grew += one["limit"] > former["limit"]
    assert grew or all(one["seconds"] > 0.2 for one in checkpoints), "it is quick and takes no more"


def test_without_the_controller_a_checkpoint_reads_all_that_is_there(
    topics: Topics, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EVENTS_VARIABLE, str(tmp_path / "events"))
    (only,) = work_off(topics, job, tmp_path, adaptive=False)
    assert (only["read"], only["sized_by"]) == (sum(BACKLOG), "everything")
