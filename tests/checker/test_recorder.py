"""The recorder beside real runs: its history of a correct run passes, and it names what it could not see."""

import os
import signal
import threading
from pathlib import Path

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from onceward.common.killpoints import KillPoint
from onceward.operate.verify import Grade, Property, judge
from onceward.operate.verify.cluster import Raw, Reader
from tests.checker.test_verify import RECORDS, Copied
from tests.support.history_files import read_history
from tests.support.processes import QUICK, JobProcesses, Process, Starter, bounded, free_address
from tests.support.recorder import Recorder
from tests.support.shared_kafka import SharedKafka
from tests.support.topics import Topics, fill, wait_for
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(300)


SPEC = {"source_options": bounded(300), "settings": {**QUICK, "num_retained": 1000}}


def end(here: JobProcesses, coordinator: Process) -> None:
    here.finish()
    coordinator.send(signal.SIGTERM)
    coordinator.wait()


def test_a_run_with_kills_is_recorded_and_passes(
    topics: Topics, job_processes: Starter, job: str, tmp_path: Path
) -> None:
    source, sink, address = topics.create("in", 3), topics.create("out", 2), free_address()
    fill(topics, source, 700)
    with (
        job_processes(source, sink, coordinator=address, **SPEC) as here,
        Recorder(
            topics.servers, job=job, inputs=[source], outputs=[sink], file=tmp_path / "history", coordinator=address
        ) as recorder,
    ):
        coordinator = here.coordinator(address)
        for point in (KillPoint.DRIVER_AFTER_DECISION, KillPoint.DRIVER_AFTER_VOTES):
            here.wait_for_kill(point, 2, here.driver(kill_at=[f"{point}:2"]))
        end(here, coordinator)
        history = recorder.finish(store=f"sqlite:///{tmp_path / 'coordinator.db'}", whole_input=True)
    verdict = judge(history)
    assert verdict.grade is Grade.PASS, verdict.text()
    assert len(history.fed) == len(history.seen) == len(history.rest) == 2100
    assert len({one.checkpoint for one in history.reports if one.state == "settled"}) >= 8
    assert judge(read_history(tmp_path / "history")).grade is Grade.PASS


@pytest.fixture(scope="module")
def copied(kafka: SharedKafka, tmp_path_factory: pytest.TempPathFactory) -> Copied:
    """A job that has ended."""
    name = f"recorded-{os.urandom(3).hex()}"
    return Copied(Topics(kafka.bootstrap_servers, name), name, tmp_path_factory.mktemp("recorded"))


def recorder_of(copied: Copied, file: Path) -> Recorder:
    return Recorder(copied.topics.servers, job=copied.job, inputs=[copied.source], outputs=[copied.sink], file=file)


def test_a_late_recorder_has_the_whole_history(copied: Copied, tmp_path: Path) -> None:
    with recorder_of(copied, tmp_path / "history") as recorder:
        history = recorder.finish(state_dir=copied.directory / "state", whole_input=True)
    verdict = judge(history)
    assert verdict.grade is Grade.PASS, verdict.text()
    assert len(history.seen) == 3 * RECORDS


def test_a_run_whose_coordinator_reported_nothing_is_unknown(copied: Copied, tmp_path: Path) -> None:
    with recorder_of(copied, tmp_path / "history") as recorder:
        verdict = judge(recorder.finish())
    assert verdict.grade is Grade.UNKNOWN
    assert "neither a coordinator nor a store was named" in verdict.text()


def test_a_recorder_that_was_not_finished_is_unknown(copied: Copied, tmp_path: Path) -> None:
    with recorder_of(copied, tmp_path / "history"):
        pass
    verdict = judge(read_history(tmp_path / "history"))
    assert verdict.having(Grade.UNKNOWN) == {*Property}


def test_output_that_is_deleted_before_the_reader_had_it_is_unknown(topics: Topics, job: str, tmp_path: Path) -> None:
    copied = Copied(topics, job, tmp_path)
    admin = AdminClient({"bootstrap.servers": topics.servers, "log_level": 0})
    gone = TopicPartition(copied.sink, 0, 7)
    wait_for(admin.delete_records([gone])[gone])
    with recorder_of(copied, tmp_path / "history") as recorder:
        verdict = judge(recorder.finish(state_dir=tmp_path / "state", whole_input=True))
    assert verdict.grade is Grade.UNKNOWN, verdict.text()
    assert verdict.having(Grade.UNKNOWN) >= {Property.NOTHING_LOST, Property.PREFIX}
    assert f"{copied.sink}-0 below offset 7" in verdict.text()


def test_a_reader_that_dies_is_a_gap_and_no_breach(
    copied: Copied, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader had read everything by then, but had not written it down."""
    read = Reader.read

    def dies(reader: Reader, timeout_s: float) -> list[Raw]:
        if read(reader, timeout_s) and threading.current_thread().name == "recorder-reads":
            raise KafkaException(KafkaError(KafkaError._FATAL))
        return []

    monkeypatch.setattr(Reader, "read", dies)
    with recorder_of(copied, tmp_path / "history") as recorder:
        wait_until(lambda: not any(one.name == "recorder-reads" for one in threading.enumerate()), "the reader dies")
        monkeypatch.undo()
        verdict = judge(recorder.finish(state_dir=copied.directory / "state", whole_input=True))
    assert verdict.having(Grade.UNKNOWN) == {Property.NOTHING_UNDECIDED, Property.PREFIX}, verdict.text()
    assert verdict.having(Grade.FAIL) == set()
    assert "the reader died" in verdict.text()
