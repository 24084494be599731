"""How a driver's process ends: signals, exit codes, a lost JVM, a second driver."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceward.client.operators import OperatorClient
from tests.support.processes import QUICK, JobProcesses, Process, Starter, bounded, free_address
from tests.support.topics import Topics, assert_exactly_once
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(300)]


def fill(topics: Topics, source: str, first: int, records: int) -> None:
    topics.fill(source, [b"%d" % number for number in range(first, first + records)], key=b"key")


def wait_for_output(topics: Topics, sink: str, records: int, driver: Process) -> None:
    wait_until(lambda: len(topics.read(sink)) >= records or not driver.running, "the output is complete", 120)
    assert driver.running, driver.tail()


def jvms_of(group: int) -> Iterator[int]:
    """The JVMs that a driver started: they stay in the driver's process group."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[2])
                if found == group and (entry / "comm").read_text().strip() == "java":
                    yield int(entry.name)
            except (FileNotFoundError, ProcessLookupError):
                continue


def java_of(driver: Process) -> int:
    (jvm,) = jvms_of(os.getpgid(driver.pid))
    return jvm


def test_sigterm_settles_and_ends_with_0_and_the_next_start_continues(topics: Topics, job_processes: Starter) -> None:
    source, sink = topics.create("in", 2), topics.create("out", 2)
    fill(topics, source, 0, 500)
    with job_processes(source, sink, spark=True, dataframe=True, source_options={"start": "earliest"}) as here:
        driver = here.driver()
        wait_for_output(topics, sink, 500, driver)
        fill(topics, source, 500, 500)
        driver.send(signal.SIGTERM)
        assert driver.wait() == 0, driver.tail()
        here.spec["source_options"] = bounded()
        here.finish()
        assert_exactly_once(topics, source, sink)


def test_a_lost_jvm_ends_the_driver_with_a_clear_message(topics: Topics, job_processes: Starter) -> None:
    source, sink = topics.create("in", 2), topics.create("out", 2)
    fill(topics, source, 0, 100)
    with job_processes(source, sink, spark=True, source_options={"start": "earliest"}) as here:
        driver = here.driver()
        wait_for_output(topics, sink, 100, driver)
        os.kill(java_of(driver), signal.SIGKILL)
        assert driver.wait() == 1
        assert "JVM is gone" in driver.tail()
        fill(topics, source, 100, 100)
        here.spec["source_options"] = bounded()
        here.finish()
        assert_exactly_once(topics, source, sink)


@pytest.fixture
def running(topics: Topics, job_processes: Starter) -> Iterator[JobProcesses]:
    source, sink = topics.create("in", 2), topics.create("out", 2)
    address = free_address()
    with job_processes(source, sink, coordinator=address, source_options={"start": "earliest"}, settings=QUICK) as made:
        yield made


def test_a_second_driver_waits_and_is_refused_while_the_first_is_alive(running: JobProcesses, topics: Topics) -> None:
    running.coordinator(running.spec["coordinator"])
    fill(topics, running.spec["source"], 0, 100)
    first = running.driver()
    wait_for_output(topics, running.spec["sink"], 100, first)
    second = running.driver()
    assert second.wait() == 2, second.tail()
    assert "living driver" in second.tail()
    fill(topics, running.spec["source"], 100, 100)
    wait_for_output(topics, running.spec["sink"], 200, first)
    assert_exactly_once(topics, running.spec["source"], running.spec["sink"])


def test_a_driver_that_is_taken_over_changes_nothing_more_and_ends_with_5(
    running: JobProcesses, topics: Topics, job: str
) -> None:
    running.coordinator(running.spec["coordinator"])
    fill(topics, running.spec["source"], 0, 100)
    first = running.driver()
    wait_for_output(topics, running.spec["sink"], 100, first)
    running.command("takeover", job, "--reason", "a test", "--coordinator", running.spec["coordinator"])
    second = running.driver()
    assert first.wait() == 5, first.tail()
    fill(topics, running.spec["source"], 100, 100)
    wait_for_output(topics, running.spec["sink"], 200, second)
    assert_exactly_once(topics, running.spec["source"], running.spec["sink"])


def test_an_idle_job_keeps_its_positions_however_many_checkpoints_are_unchanged(
    running: JobProcesses, topics: Topics
) -> None:
    running.spec["settings"] = {"interval": "0s", "timeout": "1s"}
    running.coordinator(running.spec["coordinator"])
    fill(topics, running.spec["source"], 0, 100)
    driver = running.driver()
    wait_for_output(topics, running.spec["sink"], 100, driver)
    with OperatorClient(running.spec["coordinator"]) as operator:
        wait_until(lambda: operator.jobs()[0].last_checkpoint > 30 or not driver.running, "30 idle checkpoints", 120)
    fill(topics, running.spec["source"], 100, 100)
    wait_for_output(topics, running.spec["sink"], 200, driver)
    assert_exactly_once(topics, running.spec["source"], running.spec["sink"])


def test_an_unreachable_broker_is_one_clear_error_and_nothing_is_half_started(job: str, tmp_path: Path) -> None:
    servers = free_address()
    with JobProcesses(tmp_path, job, servers, "in", "out", spark=True) as here:
        driver = here.driver()
        group = os.getpgid(driver.pid)
        assert driver.wait(60) == 3, driver.tail()
        assert servers in driver.tail()
        wait_until(lambda: not list(jvms_of(group)), "the JVM that was launched beside the preflight has ended", 60)
        assert not (tmp_path / "state").exists()


def test_options_of_spark_submit_are_honoured(topics: Topics, job_processes: Starter) -> None:
    source, sink = topics.create("in", 2), topics.create("out", 2)
    fill(topics, source, 0, 100)
    with job_processes(source, sink, spark=True, source_options=bounded()) as here:
        program = Path(__file__).with_name("submitted.py")
        driver = here.submit(program, "--master", "local[1,4]", "--conf", "spark.app.name=given")
        assert driver.wait() == 0, driver.tail()
        assert "master local[1,4] name given" in driver.tail(20000)
        assert_exactly_once(topics, source, sink)
