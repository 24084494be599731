"""``onceward verify`` on the real broker, called as a user calls it."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from onceward import CheckpointSettings, KafkaSink, KafkaSource
from onceward.coordinator.service.state_dir import StateDirectory
from onceward.coordinator.store.store import Store
from onceward.protocol.values import CheckpointState, JobName
from onceward.sinks.kafka.control.transactions import Code, Transaction, Transactions
from tests.support.processes import Starter, free_address
from tests.support.shared_kafka import SharedKafka
from tests.support.sink_job import SinkJob
from tests.support.sparkless import SparklessPipeline
from tests.support.stored_jobs import change
from tests.support.topics import Topics, abort_with_the_brokers_tool, fill, wait_for

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).resolve().parents[2]
Start: TypeAlias = Literal["earliest", "latest"]

RECORDS = 200
"""Per input partition, of three."""


class Copied:
    """A bounded copy job that has run, with its coordinator in a directory."""

    def __init__(
        self, topics: Topics, job: str, directory: Path, *, source: str = "", sink: str = "", start: Start = "earliest"
    ) -> None:
        """``source``, ``sink``: topics that exist; else they are made, and the first one is filled."""
        self.topics, self.job, self.directory, self._start = topics, job, directory, start
        self.source, self.sink = source or topics.create("in", 3), sink or topics.create("out", 2)
        if not source:
            fill(topics, self.source, RECORDS)
        self.run()

    def run(self) -> None:
        """Run the job to the end of its input."""
        SparklessPipeline(
            job=self.job,
            source=KafkaSource(
                self.topics.servers,
                topics=[self.source],
                start=self._start,
                end="latest",
                max_offsets_per_checkpoint=150,
                adaptive=False,
            ),
            sink=KafkaSink(self.topics.servers, topic=self.sink),
            settings=CheckpointSettings(interval="50ms", num_retained=1000),
            state_dir=self.directory / "state",
        ).run()

    def verify(self, *more: str, cluster: str = "") -> tuple[int, dict[str, Any], str]:
        """Exit code, the output of --json, and everything printed. ``cluster``: its name in the clusters file."""
        about = ["--job", self.job, "--state-dir", str(self.directory / "state"), "--json"]
        prefix = f"{cluster}:" if cluster else ""
        where = ["--input", prefix + self.source, "--output", prefix + self.sink]
        where += ["--clusters", "clusters.toml"] if cluster else ["--servers", self.topics.servers]
        ran = subprocess.run(
            [sys.executable, "-m", "onceward.operate", "verify", *about, *where, *more],
            cwd=self.directory,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        return ran.returncode, json.loads(ran.stdout) if ran.stdout else {}, ran.stdout + ran.stderr


def grades(said: dict[str, Any], grade: str) -> set[str]:
    return {name for name, result in said["properties"].items() if result["verdict"] == grade}


@pytest.fixture(scope="module")
def copied(kafka: SharedKafka, tmp_path_factory: pytest.TempPathFactory) -> Copied:
    """A finished job, for tests that change nothing."""
    name = f"verify-{os.urandom(3).hex()}"
    return Copied(Topics(kafka.bootstrap_servers, name), name, tmp_path_factory.mktemp("verify"))


def test_a_right_output_passes(copied: Copied) -> None:
    code, said, printed = copied.verify()
    assert (code, said["verdict"]) == (0, "PASS"), printed
    assert said["records"] == {"expected": 3 * RECORDS, "visible": 3 * RECORDS}
    assert grades(said, "PASS") == {*said["properties"]}
    assert "order kept" in said["properties"]


def test_clusters_may_have_names(copied: Copied) -> None:
    file = copied.directory / "clusters.toml"
    file.write_text(f'[clusters.main]\nbootstrap_servers = "{copied.topics.servers}"\n')
    code, said, printed = copied.verify(cluster="main")
    assert (code, said["verdict"]) == (0, "PASS"), printed


@pytest.mark.parametrize(("kept", "start"), [(0, "earliest"), (3, "latest")])
def test_nothing_may_be_read_of_a_partition_whose_log_begins_above_0(
    kept: int, start: Start, topics: Topics, job: str, tmp_path: Path
) -> None:
    source, sink = topics.create("in", 2), topics.create("out")
    topics.fill(source, [b"deleted"] * 10, partition=0)
    deleted = TopicPartition(source, 0, 10)
    wait_for(topics.admin.delete_records([deleted])[deleted])
    topics.fill(source, [b"kept"] * kept, partition=0)
    ran = Copied(topics, job, tmp_path, source=source, sink=sink, start=start)
    code, said, printed = ran.verify()
    assert (code, said["verdict"]) == (0, "PASS"), printed
    assert said["records"] == {"expected": 0, "visible": 0}


def test_another_function_than_the_jobs_fails_and_its_records_are_named(copied: Copied) -> None:
    (copied.directory / "wanted.py").write_text(
        "def copy(topic, key, value):\n"
        f"    return [({copied.sink!r}, key, value)]\n"
        "def some(topic, key, value):\n"
        "    return [] if value == b'1-77' else copy(topic, key, value)\n"
        "def wrong(topic, key, value):\n"
        "    return [value]\n"
    )
    code, said, printed = copied.verify("--expected-by", "wanted:copy")
    assert (code, said["verdict"]) == (0, "PASS"), printed
    code, said, printed = copied.verify("--expected-by", "wanted:some")
    assert (code, grades(said, "FAIL")) == (1, {"nothing foreign"}), printed
    assert f"{copied.sink}-" in printed
    code, _, printed = copied.verify("--expected-by", "wanted:wrong")
    assert code == 2
    assert "must give (topic, key, value)" in printed


def settled(store: Store, job: str) -> int:
    """The number of its settled checkpoints; the one under way at the end was aborted."""
    return sum(one.state is CheckpointState.SETTLED for one in store.checkpoints(JobName(job), 1000))


def test_a_job_is_judged_from_its_first_positions_and_without_them_from_those_that_are_given(copied: Copied) -> None:
    store = Store.open(StateDirectory(copied.directory / "state").store_url)
    try:
        before = settled(store, copied.job)
        assert store.prune([(JobName(copied.job), 1)])
        assert settled(store, copied.job) == 2 < before - 1
    finally:
        store.close()
    code, said, printed = copied.verify()
    assert (code, said["verdict"]) == (0, "PASS"), printed
    (file,) = (copied.directory / "state").glob("*.db")
    change(file, "DELETE FROM checkpoints WHERE base = 0")
    code, said, printed = copied.verify()
    assert (code, said["verdict"]) == (10, "UNKNOWN"), printed
    assert "start is no longer known" in printed
    code, said, printed = copied.verify("--from-earliest")
    assert (code, said["verdict"]) == (0, "PASS"), printed


def test_a_record_that_is_written_twice_fails(topics: Topics, job: str, tmp_path: Path) -> None:
    copied = Copied(topics, job, tmp_path)
    topics.fill(copied.sink, [b"2-10"], key=b"key-2", partition=_partition_of(topics, copied.sink, b"2-10"))
    code, said, printed = copied.verify()
    assert (code, grades(said, "FAIL")) == (1, {"nothing twice"}), printed
    assert said["keys"] == {"differing": 1, "judged": 1}


def test_a_part_that_a_tool_aborts_just_before_the_commit_fails_and_its_records_are_named(
    topics: Topics, job: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the check of the partitions and EndTxn the abort cannot be noticed; ``verify`` shows it afterwards."""
    end, torn = Transactions.end, list[bool]()

    def torn_once(self: Transactions, transactions: Sequence[Transaction], **more: Any) -> dict[str, Code]:
        if not torn and more["commit"]:
            torn.append(True)
            abort_with_the_brokers_tool(topics.servers, topics.prefix + ".out", 0)
        return end(self, transactions, **more)

    monkeypatch.setattr(Transactions, "end", torn_once)
    copied = Copied(topics, job, tmp_path)
    assert torn
    code, said, printed = copied.verify()
    assert (code, grades(said, "FAIL")) == (1, {"nothing lost"}), printed
    given, seen = ({value for _, _, _, value in topics.read(topic)} for topic in (copied.source, copied.sink))
    missing = sorted(value for value in given - seen if value is not None)
    assert len(missing) == 3 * RECORDS - said["records"]["visible"] > 0
    (evidence,) = said["properties"]["nothing lost"]["evidence"]
    assert f"{len(missing)} records lost" in evidence
    places = [value.decode().partition("-") for value in missing]
    assert any(
        f"{copied.source}-{partition} offset {offset} of checkpoint" in evidence for partition, _, offset in places
    )


def _partition_of(topics: Topics, topic: str, value: bytes) -> int:
    return next(partition for partition, _, _, found in topics.read(topic) if found == value)


def test_an_open_transaction_fails(topics: Topics, job: str, tmp_path: Path) -> None:
    copied = Copied(topics, job, tmp_path)
    with SinkJob(topics.servers, job, generation=1, topic=copied.sink) as zombie:
        identifier, producer = zombie.open_transaction(copied.sink)
        code, said, printed = copied.verify("--patience", "1")
        del producer
    assert (code, grades(said, "FAIL")) == (1, {"nothing open"}), printed
    assert identifier in printed


def test_input_that_retention_has_deleted_is_unknown(topics: Topics, job: str, tmp_path: Path) -> None:
    copied = Copied(topics, job, tmp_path)
    admin = AdminClient({"bootstrap.servers": topics.servers, "log_level": 0})
    gone = TopicPartition(copied.source, 1, 5)
    wait_for(admin.delete_records([gone])[gone])
    code, said, printed = copied.verify()
    assert (code, said["verdict"]) == (10, "UNKNOWN"), printed
    assert f"{copied.source}-1 is deleted below offset 5" in printed
    assert not grades(said, "FAIL")


@pytest.mark.crash
def test_records_repeated_by_a_restore_are_expected_twice(topics: Topics, job: str, tmp_path: Path) -> None:
    copied = Copied(topics, job, tmp_path)
    where = ["--state-dir", str(tmp_path / "state"), "--reason", "the output was cut", "--yes"]
    restore = [sys.executable, "-m", "onceward.operate", "restore", job, "--from", "2", *where]
    subprocess.run(restore, check=True, capture_output=True)
    copied.run()
    code, said, printed = copied.verify()
    assert (code, said["verdict"]) == (0, "PASS"), printed
    assert said["records"]["expected"] == said["records"]["visible"] > 3 * RECORDS


@pytest.mark.crash
def test_a_running_job_is_judged_at_a_moment_when_all_is_settled(
    topics: Topics, job_processes: Starter, job: str
) -> None:
    source, sink, address = topics.create("in", 3), topics.create("out", 2), free_address()
    fill(topics, source, RECORDS)
    with job_processes(
        source,
        sink,
        coordinator=address,
        source_options={"start": "earliest", "max_offsets_per_checkpoint": 60},
        settings={"interval": "300ms", "num_retained": 1000},
    ) as here:
        here.coordinator(address)
        driver = here.driver()
        here.wait_for_event("settled", driver, count=3)
        command = [
            sys.executable,
            "-m",
            "onceward.operate",
            "verify",
            "--job",
            job,
            "--coordinator",
            address,
            "--json",
        ]
        about = ["--servers", topics.servers, "--input", source, "--output", sink, "--patience", "60"]
        ran = subprocess.run([*command, *about], capture_output=True, text=True, check=False)
        assert driver.running
    assert ran.returncode == 0, ran.stdout + ran.stderr
    said = json.loads(ran.stdout)
    assert said["checkpoint"] >= 4
    assert 0 < said["records"]["visible"] <= 3 * RECORDS
