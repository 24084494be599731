"""What a job leaves at the brokers is listed for people, swept, and does not grow."""

from datetime import timedelta
from pathlib import Path

import pytest

from onceward.client.operators import OperatorClient
from onceward.coordinator.service.state_dir import StateDirectory
from onceward.protocol.values import CheckpointId, CheckpointKind, Claim, Generation, JobName, Outcome
from onceward.sinks.kafka.control.committables import KafkaCommittable
from onceward.sinks.kafka.control.receipt_cleanup import delete_older_receipts
from onceward.sinks.kafka.control.receipts import ReceiptState, read_receipts
from onceward.sinks.kafka.control.transactions import State
from onceward.sinks.kafka.executor import producers
from tests.support.processes import Process, Starter, descendants
from tests.support.shared_kafka import SharedKafka
from tests.support.sink_job import SinkJob, batch
from tests.support.topics import Topics, assert_exactly_once
from tests.support.waiting import wait_until


def test_open_transactions_are_listed_with_owner_age_time_left_and_receipt(
    sink: SinkJob, kafka: SharedKafka, out: str
) -> None:
    handle = KafkaCommittable.of(sink.prepared(1, [b"pre-committed"])[0])
    loser, producer = sink.open_transaction(out, timeout_ms=40_000)
    with SinkJob(kafka.bootstrap_servers, f"{sink.job}b", topic=out) as other:
        other.prepared(1, [b"another job's"])
        listed = {each.handle.id: each for each in sink.system().transactions(sink.job)}
    assert listed.keys() == {handle.transaction.id, loser}
    ours, left_open = listed[handle.transaction.id], listed[loser]
    assert ours.handle.instance == f"{handle.transaction.producer_id}/{handle.transaction.epoch}"
    assert (ours.participant, ours.generation) == ("sink", 1)
    assert ours.details["worker"] == handle.transaction.id.split(".")[3]
    assert [each.details["receipt"] for each in (ours, left_open)] == ["written", "none"]
    assert {each.state for each in listed.values()} == {"Ongoing"}
    assert {each.details["partitions"] for each in listed.values()} == {f"{out}-0"}
    assert ours.left is not None
    assert left_open.age is not None
    assert left_open.left is not None
    assert timedelta(0) <= left_open.left <= timedelta(seconds=40) < ours.left
    assert left_open.age + left_open.left == timedelta(seconds=40) or not left_open.left
    del producer


def groups_of(sink: SinkJob, topics: Topics) -> set[str]:
    """Consumer groups of the job, listed by another client."""
    listed = topics.admin.list_consumer_groups().result(30)
    return {group.group_id for group in listed.valid if group.group_id.startswith(f"{sink.job}.")}


def test_receipts_of_older_generations_are_deleted_once_a_newer_one_has_settled_a_checkpoint(
    kafka: SharedKafka, job: str, out: str, topics: Topics
) -> None:
    settled: list[str] = []
    for generation, name in ((1, "former-name"), (2, "sink"), (3, "sink")):
        with SinkJob(kafka.bootstrap_servers, job, topic=out, generation=generation, name=name) as sink:
            committables = sink.prepared(generation, [b"a"], [b"b"])
            assert {each.outcome for each in sink.system().commit(sink.author, committables)} == {Outcome.COMMITTED}
            claim = Claim(store_id="store", generation=Generation(generation), completed=CheckpointId(generation))
            sink.take_claim(claim, sink.read_claim())
            assert set(settled) <= groups_of(sink, topics)
            sink.sink.on_settled(CheckpointId(generation), committables)
            settled = [KafkaCommittable.of(committable).transaction.id for committable in committables]
            assert groups_of(sink, topics) == {f"{job}.claim", *settled}
            sink.wait_for_claim(claim)


def test_receipts_stay_few_when_every_checkpoint_has_new_worker_processes(
    kafka: SharedKafka, job: str, out: str, topics: Topics
) -> None:
    """Spark ends workers that idle for a minute, so checkpoints that are further apart always get new ones."""
    with SinkJob(kafka.bootstrap_servers, job, topic=out) as sink:
        for checkpoint in range(1, 31):
            producers._pools.mine().clear()
            committables = sink.prepared(checkpoint, [b"a"], [b"b"])
            assert {each.outcome for each in sink.system().commit(sink.author, committables)} == {Outcome.COMMITTED}
            sink.sink.on_settled(CheckpointId(checkpoint), committables)
        assert len(groups_of(sink, topics)) <= 20
        last = [KafkaCommittable.of(one) for one in committables]
        wait_until(
            lambda: all(present(sink, one) for one in last), "the brokers show the receipts of the last checkpoint"
        )


@pytest.mark.crash
@pytest.mark.timeout(300)
def test_ids_stay_few_when_each_task_has_a_new_worker_process(
    kafka: SharedKafka,
    job: str,
    topics: Topics,
    job_processes: Starter,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where checkpoints are more than a minute apart: Spark has ended the workers of the previous one."""
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--conf spark.python.worker.reuse=false pyspark-shell")
    source, sink, checkpoints = topics.create("in", 2), topics.create("out", 2), 5
    options = {"source_options": {"start": "earliest"}, "settings": {"interval": None}, "spark": True}
    with job_processes(source, sink, **options) as here:
        driver = here.driver()
        here.wait_for_event("recovered", driver)
        with OperatorClient(StateDirectory(tmp_path / "state").published()) as people:
            wait_until(lambda: people.job(JobName(job)).last_completed, "the job has its start", 120)
            for taken in range(1, checkpoints + 1):
                for partition in range(2):
                    topics.fill(source, [b"%d" % taken], partition=partition, key=b"key-%d" % partition)
                people.request_checkpoint(JobName(job), CheckpointKind.CHECKPOINT)
                here.wait_for_event("settled", driver, count=taken)
                wait_until(lambda: not workers(driver), "its processes have ended")
    assert sum(event["transactions"] for event in here.events("pre-committed")) == 2 * checkpoints
    assert_exactly_once(topics, source, sink)
    with SinkJob(kafka.bootstrap_servers, job, topic=sink) as look:
        known, failed = look.transactions.open_ids(job, states=tuple(State))
    assert not failed
    assert len(known) <= 4, "one process may write both slots, or two one each"


def workers(driver: Process) -> set[int]:
    """Process ids of the Python workers, which Spark's daemons have forked."""
    daemons = [pid for pid, command in descendants(driver.pid) if "pyspark.worker" in command]
    return {worker for daemon in daemons for worker, _ in descendants(daemon)}


def test_a_worker_process_of_one_transaction_leaves_one_id(sink: SinkJob) -> None:
    votes = []
    for checkpoint in range(1, 4):
        producers._pools.mine().clear()
        votes.append(sink.write(checkpoint, batch(b"x")))
    known, failed = sink.transactions.open_ids(sink.job, states=tuple(State))
    assert not failed
    assert {str(identifier) for identifier in known} == {vote.body["id"] for vote in votes}


def test_a_receipt_that_is_being_written_and_those_of_other_jobs_are_not_deleted(
    kafka: SharedKafka, job: str, out: str, topics: Topics
) -> None:
    others = [SinkJob(kafka.bootstrap_servers, name, topic=out) for name in (f"{job}-b", f"{job}b")]
    kept = [KafkaCommittable.of(other.prepared(1, [b"theirs"])[0]) for other in others]
    for other, handle in zip(others, kept, strict=True):
        assert other.system().commit(other.author, [handle.to_committable()])[0].outcome is Outcome.COMMITTED
    with SinkJob(kafka.bootstrap_servers, job, topic=out, generation=1) as older:
        ended, unended = older.prepared(1, [b"a"], [b"b"])
        assert older.system().commit(older.author, [ended])[0].outcome is Outcome.COMMITTED
        wait_until(lambda: older.view(ended).state is State.COMPLETE_COMMIT, "one has ended")
        deleted = delete_older_receipts(older.control, job, below=2)
        assert deleted == [KafkaCommittable.of(ended).transaction.id]
        assert older.system().commit(older.author, [unended])[0].outcome is Outcome.COMMITTED
        wait_until(lambda: present(older, KafkaCommittable.of(unended)), "the receipt that was pending is there")
    for other, handle in zip(others, kept, strict=True):
        assert present(other, handle)
        other.close()


def present(sink: SinkJob, handle: KafkaCommittable) -> bool:
    read = read_receipts(sink.control, {handle.transaction.id: handle.token})
    return read[handle.transaction.id].state is ReceiptState.PRESENT


def test_leftovers_of_a_sink_that_was_called_otherwise_and_of_slots_that_vanished_are_swept(
    kafka: SharedKafka, job: str, out: str
) -> None:
    with SinkJob(kafka.bootstrap_servers, job, topic=out, generation=1, name="former-name") as former:
        former.prepared(1, *[[b"slot"] for _ in range(5)])
    with SinkJob(kafka.bootstrap_servers, job, topic=out, generation=2) as sink:
        kept = sink.prepared(2, [b"a"])
        assert len(sink.system().leftovers(sink.job)) == 1, "the pre-commit has swept what vanished"
        zombie, producer = former.open_transaction(out)
        assert list(sink.system().sweep(sink.job, keep=kept)) == [zombie]
        assert list(sink.system().leftovers(sink.job, keep=kept)) == []
        assert sink.system().commit(sink.author, kept)[0].outcome is Outcome.COMMITTED
    del producer
