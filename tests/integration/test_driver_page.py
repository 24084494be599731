"""A driver with a coordinator in its process serves that coordinator's page."""

import json
import logging
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from onceward import CheckpointSettings, KafkaSink, KafkaSource, Pipeline, StreamingPipeline
from onceward.common.errors import ConfigurationError
from onceward.driver.restarts import NO_RESTART
from onceward.protocol.events import CloseReason
from tests.support.sparkless import SparklessPipeline
from tests.support.topics import Topics
from tests.support.waiting import wait_until


def shown(url: str | None) -> Any:
    assert url is not None
    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


def test_the_page_shows_the_job_while_it_runs(
    topics: Topics, job: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "onceward")
    source, sink = topics.create("in", 2), topics.create("out", 2)
    pipeline = SparklessPipeline(
        job=job,
        source=KafkaSource(topics.servers, topics=[source], start="earliest"),
        sink=KafkaSink(topics.servers, topic=sink),
        settings=CheckpointSettings(interval="50ms"),
        restart=NO_RESTART,
        state_dir=tmp_path / "state",
        web="127.0.0.1:0",
    )
    topics.fill(source, [b"1", b"2", b"3"])
    ended: list[CloseReason] = []
    thread = threading.Thread(target=lambda: ended.append(pipeline.run()))
    thread.start()
    try:
        wait_until(lambda: len(topics.read(sink)) == 3 or ended, "the values are copied", 120)
        described = shown(f"{pipeline.page_url}jobs/{job}")["description"]
        assert [one["place"] for one in described["participants"]] == ["", f"Kafka topic {sink}"]
        (found,) = shown(pipeline.page_url)["jobs"]
        assert (found["job"], found["status"]) == (job, "running")
        assert any(f", page {pipeline.page_url}, store id" in line for line in caplog.messages)
    finally:
        pipeline.stop()
        thread.join()
    assert ended == [CloseReason.STOPPED]
    assert pipeline.page_url is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"web": "0.0.0.0:7879"}, "no HOST:PORT of this machine only"),
        ({"web": "unix:/tmp/page"}, "no HOST:PORT of this machine only"),
        ({"web": "7879"}, "is no address to listen on"),
        ({"web": "127.0.0.1:0", "coordinator": "localhost:7878"}, "onceward serve --web HOST:PORT there"),
    ],
)
def test_what_would_show_jobs_to_others_is_refused(options: dict[str, str], says: str, tmp_path: Path) -> None:
    ends: dict[str, Any] = {"job": "orders", "sink": KafkaSink("localhost:9092", topic="out"), **options}
    source = KafkaSource("localhost:9092", topics=["in"], start="earliest")
    with pytest.raises(ConfigurationError, match=says):
        Pipeline(source=source, **ends)
    with pytest.raises(ConfigurationError, match=says):
        StreamingPipeline(query=lambda spark: spark.readStream.load(), checkpoint_location=tmp_path, **ends)
