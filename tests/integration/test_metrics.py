"""Metrics of a driver and of a coordinator while a job runs on a real broker show the true numbers."""

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from onceward import CheckpointSettings, KafkaSink, KafkaSource
from onceward.client.operators import OperatorClient
from onceward.common.errors import ConfigurationError
from onceward.coordinator.service.state_dir import StateDirectory
from onceward.driver.restarts import NO_RESTART
from onceward.protocol.events import CloseReason
from onceward.protocol.values import CheckpointState, JobName
from onceward.watch.metrics.endpoint import Endpoint
from onceward.watch.metrics.registry import Registry
from tests.support.scraped import Scraped, scrape
from tests.support.scripted import CoordinatorProcess
from tests.support.sparkless import SparklessPipeline
from tests.support.topics import Topics, assert_exactly_once
from tests.support.waiting import wait_until

VALUES: list[bytes | None] = [b"value %04d" % number for number in range(500)]
KEY = b"key"
BYTES = sum(len(KEY) + len(value or b"") for value in VALUES)


class Job:
    """A job whose driver serves metrics."""

    def __init__(self, topics: Topics, job: str, **options: Any) -> None:
        self.topics, self.name = topics, job
        self.source, self.sink = topics.create("in", 2), topics.create("out", 2)
        self.pipeline = SparklessPipeline(
            job=job,
            source=KafkaSource(topics.servers, topics=[self.source], start="earliest", adaptive=False),
            sink=KafkaSink(topics.servers, topic=self.sink),
            settings=CheckpointSettings(interval="50ms"),
            restart=NO_RESTART,
            **{"metrics": "127.0.0.1:0", **options},
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        """Copy all values, then go on running; stop at the exit."""
        self.topics.fill(self.source, VALUES, partition=0, key=KEY)
        ended: list[CloseReason] = []
        thread = threading.Thread(target=lambda: ended.append(self.pipeline.run()))
        thread.start()
        try:
            wait_until(lambda: len(self.topics.read(self.sink)) == len(VALUES) or ended, "the values are copied", 120)
            yield
        finally:
            self.pipeline.stop()
            thread.join()
        assert ended == [CloseReason.STOPPED]
        assert self.pipeline.metrics_url is None
        assert_exactly_once(self.topics, self.source, self.sink)

    def scraped(self, true: Callable[[Scraped], bool] = lambda _: True) -> Scraped:
        """A scrape of the driver for which ``true`` holds."""
        assert self.pipeline.metrics_url is not None
        found = [scrape(self.pipeline.metrics_url)]

        def again() -> bool:
            found[0] = scrape(self.pipeline.metrics_url or "")
            return true(found[0])

        wait_until(again, "the metrics show it")
        return found[0]


def assert_the_drivers_numbers(job: Job) -> None:
    found = job.scraped(lambda found: found.value("onceward_driver_last_settled_timestamp_seconds") > 0)
    assert found.value("onceward_driver_records_read_total", job_name=job.name) == len(VALUES)
    assert found.value("onceward_driver_records_written_total", job_name=job.name) == len(VALUES)
    assert found.value("onceward_driver_bytes_written_total", job_name=job.name) == BYTES
    assert found.value("onceward_driver_source_lag_offsets", job_name=job.name) == 0
    assert found.value("onceward_driver_generation", job_name=job.name) == 1
    written = found.value("onceward_driver_checkpoints_pre_committed_total", job_name=job.name)
    assert 1 <= written <= len(VALUES)
    assert found.value("onceward_driver_step_seconds_count", job_name=job.name, step="prove") == written
    assert found.value("onceward_driver_output_step_seconds_count", output="sink", step="pre_commit") == written
    assert found.value("onceward_driver_output_step_seconds_count", output="sink", step="commit") >= 1
    assert found.value("onceward_driver_output_committing_seconds", output="sink") >= 0


def assert_the_coordinators_numbers(found: Scraped, job: Job, people: OperatorClient) -> None:
    summary = people.job(JobName(job.name))
    rows = [row for row in people.checkpoints(JobName(job.name), 1000) if row.state is CheckpointState.SETTLED]
    assert found.value("onceward_records_read_total", job_name=job.name) == len(VALUES)
    assert found.value("onceward_records_written_total", job_name=job.name) == len(VALUES)
    assert found.value("onceward_bytes_written_total", job_name=job.name) == BYTES
    assert found.value("onceward_job_status", job_name=job.name, status="running") == 1
    assert found.value("onceward_job_generation", job_name=job.name) == 1
    assert found.value("onceward_checkpoints_total", job_name=job.name, result="completed") == len(rows)
    assert found.value("onceward_job_unsettled_committables", job_name=job.name) == 0
    assert found.value("onceward_job_oldest_transaction_age_seconds", job_name=job.name) == 0
    assert summary.last_completed_at is not None
    at = found.value("onceward_job_last_completed_timestamp_seconds", job_name=job.name)
    assert abs(at - summary.last_completed_at.timestamp()) < 60
    assert found.value("onceward_leader") == 1


def test_a_driver_and_its_coordinator_show_the_true_numbers(topics: Topics, job: str, tmp_path: Path) -> None:
    coordinator = CoordinatorProcess(tmp_path / "coordinator", options=["--metrics", "127.0.0.1:0"])
    try:
        coordinator.wait_ready()
        wait_until(lambda: "listens on" in coordinator.log.read_text(), "the address is announced")
        url = re.search(r"metrics are at (\S+)", coordinator.log.read_text())
        assert url is not None
        running = Job(topics, job, coordinator=coordinator.address)
        with running.running(), OperatorClient(coordinator.address) as people:
            assert_the_drivers_numbers(running)
            assert not running.scraped().series("onceward_leader")
            wait_until(lambda: people.job(JobName(job)).settled, "everything is settled")
            assert_the_coordinators_numbers(scrape(url[1]), running, people)
    finally:
        coordinator.end()


def test_a_driver_shows_its_embedded_coordinator_too(topics: Topics, job: str, tmp_path: Path) -> None:
    running = Job(topics, job, state_dir=tmp_path / "state")
    with running.running():
        assert_the_drivers_numbers(running)
        with OperatorClient(StateDirectory(tmp_path / "state").published()) as people:
            wait_until(lambda: people.job(JobName(job)).settled, "everything is settled")
            assert_the_coordinators_numbers(running.scraped(), running, people)


def test_an_address_that_is_taken_ends_the_start_before_the_job_is_opened(
    topics: Topics, job: str, tmp_path: Path
) -> None:
    with closing(Endpoint("127.0.0.1:0", Registry())) as taken:
        address = taken.url.removeprefix("http://").removesuffix("/metrics")
        made = Job(topics, job, metrics=address, state_dir=tmp_path / "state")
        with pytest.raises(ConfigurationError, match="Cannot serve metrics"):
            made.pipeline.run()
    assert not (tmp_path / "state").exists()
