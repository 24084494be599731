"""A job over SASL_SSL and over mTLS with exactly the rules of docs/how-to/kafka-acls.md: each role has its own user.

The one password is a canary: it is in no log, event, store, configuration, argument or message.
"""

import json
import logging
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

from onceward import CheckpointSettings, DeadLetters, KafkaCluster, KafkaSink, KafkaSource, per_record
from onceward.client.operators import OperatorClient
from onceward.common.errors import OncewardError
from onceward.common.killpoints import KillPoint
from onceward.dev.kafka.topics import make_topics
from onceward.driver.restarts import NO_RESTART
from onceward.operate.cli import app
from onceward.protocol.events import CloseReason
from onceward.protocol.status import JobStatus
from onceward.protocol.values import Outcome
from onceward.sinks.kafka.control.clock import Clock
from onceward.sinks.kafka.control.receipts import RECEIPT_TOPIC
from onceward.wire.rows import JobSummary
from tests.support.commands import onceward
from tests.support.guarded import ROLES, Guarded, Right, guarded_kafka, least_rights
from tests.support.processes import QUICK, JobProcesses, Process, bounded, descendants, free_address
from tests.support.sink_job import SinkJob
from tests.support.sparkless import SparklessPipeline
from tests.support.topics import Topics, assert_exactly_once, fill, open_transactions_hold_back
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kill, pytest.mark.long, pytest.mark.timeout(400)]

PASSWORD = "c4n4ry-password-of-every-user"
BETWEEN = KillPoint.DRIVER_BETWEEN_END_TXN


@pytest.fixture(scope="module", params=["SASL_SSL", "SSL"])
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with guarded_kafka(tmp_path_factory.mktemp("guarded"), request.param, ROLES, PASSWORD) as made:
        make_topics(made.servers, [RECEIPT_TOPIC], partitions=1, replicas=1)
        yield made


# With passwords here; `make crash` also has certificates.
mostly_sasl = pytest.mark.parametrize(
    "guarded", ["SASL_SSL", pytest.param("SSL", marks=pytest.mark.crash)], indirect=True
)


class GuardedJob:
    """A job with ten checkpoints of bounded input; each role has the rights that it needs, and no other."""

    def __init__(self, guarded: Guarded, job: str, directory: Path, *, records: int = 1500, **spec: Any) -> None:
        self.guarded = guarded
        self.topics = Topics(guarded.servers, job)
        self.source, self.sink = self.topics.create("in", 3), self.topics.create("out", 3)
        fill(self.topics, self.source, records)
        self.names = {"INPUT": self.source, "OUTPUT": self.sink, "JOB": job, "GROUP": job}
        self.rights = {role: least_rights(role, self.names) for role in ROLES}
        for role, rights in self.rights.items():
            guarded.allow(role, rights)
        options = {"config": guarded.config("driver"), "source_options": bounded(150), "settings": QUICK, **spec}
        servers = guarded.kafka.bootstrap_servers
        self.processes = JobProcesses(directory, job, servers, self.source, self.sink, **options)

    def is_complete(self) -> None:
        assert_exactly_once(self.topics, self.source, self.sink)

    def readers_wait(self) -> bool:
        return any(open_transactions_hold_back(self.topics.servers, self.sink).values())


@contextmanager
def guarded_job(guarded: Guarded, job: str, directory: Path, **spec: Any) -> Iterator[GuardedJob]:
    made = GuardedJob(guarded, job, directory, **spec)
    with made.processes:
        yield made


def test_a_job_that_was_killed_amid_its_commits_recovers_with_the_least_rights(
    guarded: Guarded, job: str, tmp_path: Path
) -> None:
    with guarded_job(guarded, job, tmp_path) as here:
        here.processes.wait_for_kill(BETWEEN, 3, here.processes.driver(kill_at=[f"{BETWEEN}:3"]))
        assert here.readers_wait()
        here.processes.finish()
        here.is_complete()
        assert [event["resumed"] for event in here.processes.events("recovered")] == [0, 3]
    assert_nowhere(tmp_path, [])


@mostly_sasl
def test_an_idle_job_ends_what_a_late_task_left_open_with_the_least_rights(
    guarded: Guarded, job: str, tmp_path: Path
) -> None:
    with guarded_job(guarded, job, tmp_path, source_options={"start": "earliest"}, sweep_s=0.5) as here:
        driver = here.processes.driver()
        here.processes.wait_for_event("settled", driver)
        late = Producer({"bootstrap.servers": guarded.servers, "transactional.id": f"{job}.sink.1.{'0' * 12}.0"})
        late.init_transactions(30)
        late.begin_transaction()
        late.produce(here.sink, b"late", partition=0)
        late.flush(30)
        here.processes.wait_for_event("swept", driver)
        wait_until(lambda: not here.readers_wait(), f"readers continue:\n{driver.tail()}")
        driver.terminate()
        assert driver.wait() == 0, driver.tail()
        here.is_complete()
        del late


@mostly_sasl
def test_a_coordinator_settles_for_a_dead_driver_with_the_least_rights(
    guarded: Guarded, job: str, tmp_path: Path
) -> None:
    """It gets its rights but one, each in turn, and then all."""
    settings = {"interval": "100ms", "stream_grace": "200ms", "lease": "1s", "orphan_grace": "1s"}
    with guarded_job(guarded, job, tmp_path, coordinator=free_address(), settings=settings) as here:
        rights = here.rights["coordinator"]
        guarded.allow("coordinator", [])
        coordinator(here)
        here.processes.wait_for_kill(BETWEEN, 3, here.processes.driver(kill_at=[f"{BETWEEN}:3"]))
        assert "Grant WRITE on TransactionalId" in transactions(here), "unknown, not none"
        for missing in rights:
            guarded.allow("coordinator", [right for right in rights if right != missing])
            wait_until(lambda: names_it(job_in(here).orphan, missing), f"{missing} is named: {job_in(here).orphan}")  # noqa: B023
            assert not job_in(here).settled
            assert job_in(here).status is JobStatus.SUSPENDED
        assert here.readers_wait()
        assert "unknown, grant DESCRIBE on topic __consumer_offsets" in transactions(here)
        guarded.allow("coordinator", rights)
        wait_until(lambda: job_in(here).settled, "all is settled", 120)
        assert not here.readers_wait()
        here.processes.finish()
        here.is_complete()
        recovered = here.processes.events("recovered")
        assert [(event["resumed"], event["aborted"]) for event in recovered] == [(0, 0), (0, 0)]
    assert_nowhere(tmp_path, [])


def without_one() -> Iterator[tuple[int, str]]:
    """For each right that a driver needs, by its number: what is left of it."""
    for number, right in enumerate(least_rights("driver", {})):
        yield number, ""
        if right.operation != "Describe":
            yield number, "Describe"


WITHOUT_ONE = [
    pytest.param(number, left, marks=pytest.mark.crash if at % 3 else ())
    for at, (number, left) in enumerate(without_one())
]
"""Every third here; `make crash` has all."""


@pytest.mark.parametrize("guarded", ["SASL_SSL"], indirect=True)
@pytest.mark.parametrize(("number", "left"), WITHOUT_ONE)
def test_a_driver_that_lacks_a_right_is_refused_before_anything_is_written(
    guarded: Guarded, job: str, tmp_path: Path, number: int, left: str
) -> None:
    here = GuardedJob(guarded, job, tmp_path, records=10)
    rights = here.rights["driver"]
    missing = rights[number]
    less = [replace(missing, operation=left)] if left else []
    guarded.allow("driver", [*rights[:number], *less, *rights[number + 1 :]])
    with pytest.raises(OncewardError) as refused:
        pipeline(here, tmp_path).run()
    assert names_it(str(refused.value), missing), refused.value
    assert "no data was touched" in str(refused.value) or "No data was changed" in str(refused.value)
    assert here.topics.values(here.sink, committed=False) == []
    guarded.allow("driver", rights)
    assert pipeline(here, tmp_path).run() is CloseReason.FINISHED
    here.is_complete()


@mostly_sasl
def test_executors_with_a_user_of_their_own_need_no_more_and_each_right_that_they_lack_is_named(
    guarded: Guarded, job: str, tmp_path: Path
) -> None:
    shared, theirs = guarded.per_process("executors")
    _, drivers = guarded.per_process("driver")
    (tmp_path / "spark-events").mkdir()
    conf = {f"spark.executorEnv.{name}": value for name, value in theirs.items()}
    conf |= {"spark.eventLog.enabled": "true", "spark.eventLog.dir": (tmp_path / "spark-events").as_uri()}
    conf["spark.eventLog.compress"] = "false"  # nothing would be found in it
    said = " ".join(f"--conf {key}={value}" for key, value in conf.items())
    spec = {"config": shared, "source_options": {"start": "earliest"}, "spark": True}
    with guarded_job(guarded, job, tmp_path, **spec) as here:
        environment = {**drivers, "PYSPARK_SUBMIT_ARGS": f"--master local[2,4] {said} pyspark-shell"}
        driver = here.processes.start_driver("driver", "tests.support.driver", here.processes.spec, environment)
        here.processes.wait_for_event("settled", driver, limit_s=180)
        for missing in here.rights["executors"]:
            guarded.allow("executors", [right for right in here.rights["executors"] if right != missing])
            seen = len(here.processes.events("failed"))
            fill(here.topics, here.source, 10)
            wait_until(
                lambda: any(names_it(event["reason"], missing) for event in here.processes.events("failed")[seen:]),  # noqa: B023
                f"{missing} is named:\n{driver.tail()}",
                120,
            )
            guarded.allow("executors", here.rights["executors"])
            wait_until(
                lambda: len(here.topics.read(here.sink)) == len(here.topics.read(here.source)), "it continues", 120
            )
        arguments = [command for _, command in descendants(driver.pid)]
        assert any("pyspark.worker" in command for command in arguments)
        driver.terminate()
        assert driver.wait() == 0, driver.tail()
        here.is_complete()
        assert not here.processes.events("replayed"), "a missing right is no lost transaction"
    logged = [file.read_bytes() for file in (tmp_path / "spark-events").rglob("*") if file.is_file()]
    assert any(job.encode() in text for text in logged), "Spark's log of events cannot be searched"
    assert_nowhere(tmp_path, arguments)


def test_the_password_is_in_no_log_nor_message_when_a_login_is_refused(
    guarded: Guarded, job: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    here = GuardedJob(guarded, job, tmp_path, records=10)
    # With PLAIN, requests hold the password itself.
    plain = {"sasl.mechanisms": "PLAIN"} if guarded.protocol == "SASL_SSL" else {}
    assert pipeline(here, tmp_path, **plain).run() is CloseReason.FINISHED
    wrong = tmp_path / "wrong"
    wrong.write_text(f"{PASSWORD}-of-another")
    key = "sasl.password" if guarded.protocol == "SASL_SSL" else "ssl.key.password"
    with pytest.raises(OncewardError) as refused:
        pipeline(here, tmp_path, **plain, **{key: f"file:{wrong}"}).run()
    wrong.unlink()
    printed = capfd.readouterr()
    shown = "".join(traceback.format_exception(refused.value))
    assert f"job={job}" in caplog.text
    assert_nowhere(tmp_path, [caplog.text, printed.out, printed.err, shown])


@mostly_sasl
def test_rights_that_are_missing_for_a_moment_amid_the_commits_halt_no_job(
    guarded: Guarded, job: str, tmp_path: Path
) -> None:
    with guarded_job(guarded, job, tmp_path) as here:
        rights = [right for role in ("driver", "executors") for right in here.rights[role]]
        guarded.allow("driver", rights)
        waits: list[float] = []

        def wait(seconds: float) -> None:
            waits.append(seconds)
            if len(waits) == 5:
                guarded.allow("driver", rights)

        cluster = KafkaCluster(guarded.kafka.bootstrap_servers, config=guarded.config("driver"))
        with SinkJob(guarded.kafka.bootstrap_servers, job, cluster=cluster, topic=here.sink) as sink:
            committables = sink.prepared(1, [b"a"])
            guarded.allow("driver", [right for right in rights if right.resource not in ("TransactionalId", "Group")])
            (settled,) = sink.system(Clock(wait=wait)).commit(sink.author, committables)
        assert settled.outcome is Outcome.COMMITTED
        assert len(waits) >= 5
        assert here.topics.values(here.sink) == [b"a"]


@pytest.mark.parametrize("guarded", ["SASL_SSL"], indirect=True)
def test_dead_letters_need_the_rights_of_one_more_output_and_go_back_with_those_of_a_job_of_their_own(
    guarded: Guarded, job: str, tmp_path: Path
) -> None:
    here = GuardedJob(guarded, job, tmp_path, records=150)
    dead = here.topics.create("dead", 3)

    def with_letters(function: Any) -> SparklessPipeline:
        cluster = KafkaCluster(guarded.kafka.bootstrap_servers, config=guarded.config("driver"))
        letters = DeadLetters(KafkaSink(cluster, topic=dead), rate=1.0)
        return pipeline(here, tmp_path, transform_batches=per_record(function), dead_letters=letters)

    def refused(record: dict[str, Any]) -> dict[str, Any]:
        raise ValueError("wrong")

    def copied(record: dict[str, Any]) -> dict[str, Any]:
        return {"key": record["key"], "value": record["value"]}

    def rights(names: dict[str, str]) -> list[Right]:
        found = [one for outputs in (here.sink, dead) for one in least_rights("driver", {**names, "OUTPUT": outputs})]
        return list(dict.fromkeys(found))

    def listed() -> Any:
        systems = tmp_path / "systems.toml"
        settings = "".join(f'"{key}" = "{value}"\n' for key, value in guarded.config("driver").items())
        address = guarded.kafka.bootstrap_servers
        systems.write_text(f'[clusters.main]\nbootstrap_servers = "{address}"\n[clusters.main.config]\n{settings}')
        return onceward("letters", job, "--state-dir", str(tmp_path / "state"), "--systems", str(systems), "--json")

    writing = Right(operation="Write", resource="Topic", name=dead)
    with pytest.raises(OncewardError) as missing:
        with_letters(refused).run()
    assert names_it(str(missing.value), writing), missing.value
    guarded.allow("driver", rights(here.names))
    assert with_letters(refused).run() is CloseReason.FINISHED
    assert here.topics.values(here.sink) == []
    assert f"READ on topic {dead}" in listed().stderr
    back = f"{job}-redrive"
    guarded.allow("driver", rights({"INPUT": dead, "JOB": back, "GROUP": back}))
    assert json.loads(listed().stdout)["reasons"][0]["letters"] == 3 * 150
    assert with_letters(copied).redrive().run() is CloseReason.FINISHED
    here.is_complete()


def pipeline(
    here: GuardedJob, directory: Path, *, transform_batches: Any = None, dead_letters: Any = None, **changes: str
) -> SparklessPipeline:
    config = {**here.guarded.config("driver"), **changes}
    cluster = KafkaCluster(here.guarded.kafka.bootstrap_servers, config=config)
    return SparklessPipeline(
        transform_batches=transform_batches,
        dead_letters=dead_letters,
        job=here.processes.spec["job"],
        source=KafkaSource(cluster, topics=[here.source], start="earliest", end="latest"),
        sink=KafkaSink(cluster, topic=here.sink),
        settings=CheckpointSettings(interval="50ms"),
        state_dir=directory / "state",
        restart=NO_RESTART,
    )


def assert_nowhere(directory: Path, texts: Iterable[str]) -> None:
    """The password is in none of the texts, and in no file of the directory."""
    assert not [text for text in texts if PASSWORD in text]
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert {"events", "driver.log"} <= {path.name for path in files} or (directory / "state" / "store.db").exists()
    assert not [path for path in files if PASSWORD.encode() in path.read_bytes()]


def coordinator(here: GuardedJob) -> Process:
    return here.processes.coordinator(
        here.processes.spec["coordinator"], settles=True, config=here.guarded.config("coordinator")
    )


def transactions(here: GuardedJob) -> str:
    """What ``onceward transactions`` prints with the coordinator's rights."""
    address, job = here.processes.spec["coordinator"], here.processes.spec["job"]
    options = ["--coordinator", address, "--clusters", str(here.processes.clusters_file), "--json"]
    return str(CliRunner().invoke(app, ["transactions", job, *options]).output)


def job_in(here: GuardedJob) -> JobSummary:
    with OperatorClient(here.processes.spec["coordinator"], patience="60s") as client:
        (found,) = [one for one in client.jobs() if one.job == here.processes.spec["job"]]
    return found


def names_it(said: str, right: Right) -> bool:
    """The right and its resource, which the preflight calls ``sink topic`` or ``transactional ids``."""
    kind = right.resource.lower().removesuffix("id")
    return right.operation.upper() in said and kind in said.lower() and right.name in said


@pytest.mark.parametrize("guarded", ["SASL_SSL"], indirect=True)
@pytest.mark.parametrize(
    "point",
    [
        pytest.param(KillPoint.DRIVER_AFTER_DECISION, marks=pytest.mark.crash),
        KillPoint.DRIVER_AFTER_CLAIM_RENEWAL,
    ],
)
def test_a_decided_transaction_that_may_not_be_ended_any_more_waits_and_is_never_taken_for_lost(
    guarded: Guarded, job: str, tmp_path: Path, point: KillPoint
) -> None:
    with guarded_job(guarded, job, tmp_path) as here:
        rights = here.rights["driver"]
        driver = here.processes.driver(kill_at=[f"{point}:3:block"])
        wait_until(lambda: f"{point}:3" in here.processes.killed_at(), "three checkpoints are decided")
        guarded.allow("driver", [right for right in rights if right.resource != "TransactionalId"])
        here.processes.wake(f"{point}:3")
        wait_until(lambda: here.processes.events("failed") or not driver.running, f"it fails:\n{driver.tail()}", 120)
        assert "WRITE on" in driver.tail()
        assert here.readers_wait()
        guarded.allow("driver", rights)
        if driver.wait():  # it had halted before it had the rights again
            here.processes.finish()
        here.is_complete()
        assert sum(event["resumed"] for event in here.processes.events("recovered")) == 3
        assert not here.processes.events("replayed")
