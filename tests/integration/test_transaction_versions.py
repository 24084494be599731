"""The same outcomes on clusters with transaction.version 0, 1 and 2, and at the last epochs of a producer."""

import itertools
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from kafka.protocol.admin import UpdateFeaturesRequest
from kafka.protocol.producer import EndTxnRequest, InitProducerIdRequest

from onceward.common.errors import FencedError
from onceward.common.killpoints import KillPoint
from onceward.connections.codes import ErrorCode
from onceward.connectors.tasks import Vote
from onceward.dev.kafka import LocalKafka
from onceward.protocol.values import CheckpointId, Claim, Committable, Generation, Outcome
from onceward.sinks.kafka.control.claims import ClaimHolder
from onceward.sinks.kafka.control.committables import KafkaCommittable
from onceward.sinks.kafka.control.control_plane import CoordinatorKind, NoAnswer, Operation
from onceward.sinks.kafka.control.fencing import fence_ids
from onceward.sinks.kafka.control.outcomes import EndAnswer, classify
from onceward.sinks.kafka.control.receipts import ReceiptState, read_receipts
from onceward.sinks.kafka.control.transactions import Code, State
from onceward.sinks.kafka.identifiers import claim_name
from tests.support import stream_queries
from tests.support.brokers import needs_transaction_version
from tests.support.processes import JobProcesses, bounded
from tests.support.sink_job import QUICK, SinkJob
from tests.support.topics import Topics, abort_with_the_brokers_tool, assert_exactly_once
from tests.support.waiting import wait_until

LAST_EPOCH = 32_766
TIMEOUT_S = 1
SPARK_STARTS_S = 300.0
"""Limit for one life of a driver with Spark; only a stalled machine needs it."""


@pytest.fixture(scope="module")
def kafka_0() -> Iterator[LocalKafka]:
    with LocalKafka(transaction_version=0, transaction_timeout_scan_ms=200, heap="256m") as local:
        yield local


@pytest.fixture(scope="module")
def kafka_1() -> Iterator[LocalKafka]:
    with LocalKafka(transaction_version=1, transaction_timeout_scan_ms=200, heap="256m") as local:
        yield local


@pytest.fixture(params=[0, pytest.param(1, marks=pytest.mark.crash), 2], ids=["tv0", "tv1", "tv2"])
def version(request: pytest.FixtureRequest) -> int:
    """The cluster's transaction.version."""
    return needs_transaction_version(int(request.param))


@pytest.fixture
def broker(version: int, request: pytest.FixtureRequest) -> LocalKafka:
    found: LocalKafka = request.getfixturevalue("kafka" if version == 2 else f"kafka_{version}")
    return found


@pytest.fixture
def out(broker: LocalKafka, job: str) -> str:
    return Topics(broker.bootstrap_servers, job).create("out")


@pytest.fixture
def sink(broker: LocalKafka, job: str, out: str) -> Iterator[SinkJob]:
    with SinkJob(broker.bootstrap_servers, job, topic=out, transaction_timeout=f"{TIMEOUT_S}s") as opened:
        yield opened


def test_a_claim_is_taken_from_its_previous_writer(sink: SinkJob, broker: LocalKafka, job: str) -> None:
    first = Claim(store_id="store", generation=Generation(1), completed=CheckpointId(1), holder="first")
    second = replace(first, generation=Generation(2), holder="second")
    sink.take_claim(first, None)
    for completed in range(2, 12):  # faster than the brokers write the previous markers
        first = replace(first, completed=CheckpointId(completed))
        sink.own.prepare_claim(replace(first, completed=CheckpointId(completed + 1)))
        assert sink.own.renew_claim(first)
        assert sink.read_claim() in (first, replace(first, completed=CheckpointId(completed - 1)))
    sink.own.prepare_claim(replace(first, completed=CheckpointId(12)))
    with SinkJob(broker.bootstrap_servers, job, topic="none", generation=2) as other:
        other.take_claim(second, first)
        with pytest.raises(FencedError):
            sink.own.renew_claim(replace(first, completed=CheckpointId(12)))
        other.wait_for_claim(second)
        assert other.own.renew_claim(replace(second, completed=CheckpointId(12)))


def end(sink: SinkJob, committable: Committable, *, commit: bool) -> None:
    transaction = KafkaCommittable.of(committable).transaction
    assert sink.transactions.end([transaction], commit=commit)[transaction.id] == ErrorCode.NONE
    await_state(sink, committable, State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT)


def commit(sink: SinkJob, committable: Committable) -> None:
    end(sink, committable, commit=True)


def abort(sink: SinkJob, committable: Committable) -> None:
    end(sink, committable, commit=False)


def time_out(sink: SinkJob, committable: Committable) -> None:
    await_state(sink, committable, State.COMPLETE_ABORT)


def take(sink: SinkJob, committable: Committable) -> None:
    fence_ids(sink.control, [KafkaCommittable.of(committable).transaction.id], QUICK)


def use_and_abort(sink: SinkJob, committable: Committable) -> None:
    """Take over the id with another program, write under it and abort."""
    producer = client(sink.servers, KafkaCommittable.of(committable).transaction.id)
    producer.begin_transaction()
    producer.produce(next(iter(KafkaCommittable.of(committable).topics)), b"foreign")
    assert producer.flush(10) == 0
    producer.abort_transaction(10)
    await_state(sink, committable, State.COMPLETE_ABORT)


def client(servers: str, name: str, timeout_ms: int = TIMEOUT_S * 1000) -> Producer:
    """A producer that can begin a transaction under an id, whatever happened to the id before."""
    producer = Producer(
        {
            "bootstrap.servers": servers,
            "transactional.id": name,
            "transaction.timeout.ms": timeout_ms,
            "log_level": 0,
        }
    )
    producer.list_topics(timeout=10)
    producer.init_transactions(30)
    return producer


def await_state(sink: SinkJob, committable: Committable, state: State) -> None:
    wait_until(lambda: sink.view(committable).state is state, f"it is {state}")


def delete_receipt(sink: SinkJob, committable: Committable) -> None:
    handle = KafkaCommittable.of(committable)

    def reported() -> ReceiptState:
        return read_receipts(sink.control, {handle.transaction.id: handle.token})[handle.transaction.id].state

    wait_until(lambda: reported() in (ReceiptState.PRESENT, ReceiptState.ABSENT), "nothing is open")
    if reported() is ReceiptState.PRESENT:
        group = handle.transaction.id
        admin = Topics(sink.servers, sink.job).admin
        admin.delete_consumer_groups([group])[group].result(30)
    assert reported() is ReceiptState.ABSENT


ENDINGS: dict[str, tuple[tuple[Callable[[SinkJob, Committable], None], ...], Outcome]] = {
    "committed": ((commit,), Outcome.COMMITTED),
    "timed-out": ((time_out,), Outcome.LOST),
    "aborted": ((abort,), Outcome.LOST),
    "fenced": ((take,), Outcome.LOST),
    "committed-taken": ((commit, take), Outcome.COMMITTED),
    "committed-used-aborted": ((commit, use_and_abort), Outcome.COMMITTED),
    "timed-out-used-aborted": ((time_out, use_and_abort), Outcome.LOST),
}
LEFT: dict[str, tuple[State, int, int]] = {
    "committed": (State.COMPLETE_COMMIT, 0, 1),
    "timed-out": (State.COMPLETE_ABORT, 1, 1),
    "aborted": (State.COMPLETE_ABORT, 0, 1),
    "fenced": (State.EMPTY, 2, 2),
    "committed-taken": (State.EMPTY, 1, 2),
    "committed-used-aborted": (State.COMPLETE_ABORT, 1, 2),
    "timed-out-used-aborted": (State.COMPLETE_ABORT, 2, 2),
}
"""What the transaction coordinator shows afterwards: the state, and how far its epoch is above the transaction's at
versions 0 and 1, and at version 2. This is the table of docs/protocol.md#outcomes."""


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_outcome_is_true_without_a_receipt_and_in_every_state_of_the_id(
    sink: SinkJob, version: int, ending: str
) -> None:
    steps, expected = ENDINGS[ending]
    (committable,) = sink.prepared(1, [b"a"])
    handle = KafkaCommittable.of(committable)
    assert handle.transaction.version == (5 if version == 2 else 4)
    for step in steps:
        step(sink, committable)
    state, older, newest = LEFT[ending]
    view = sink.view(committable)
    assert (view.state, view.producer_id) == (state, handle.transaction.producer_id)
    assert view.epoch - handle.transaction.epoch == (newest if version == 2 else older)
    delete_receipt(sink, committable)
    assert sink.system().outcome(committable).outcome is expected
    (settlement,) = sink.system().commit(sink.author, [committable])
    assert settlement.outcome is expected, settlement.evidence


def commit_twice(servers: str, job: str, committable: Committable) -> list[Code]:
    """Commit, and repeat it, as a process that has written nothing; return the answers of the brokers."""
    transaction = KafkaCommittable.of(committable).transaction
    with SinkJob(servers, job, topic="none", generation=2) as other:
        answers = [other.transactions.end([transaction], commit=True)[transaction.id]]
        await_state(other, committable, State.COMPLETE_COMMIT)
        answers.append(other.transactions.end([transaction], commit=True)[transaction.id])
        (settlement,) = other.system().commit(other.author, [committable])
        assert settlement.outcome is Outcome.COMMITTED, settlement.evidence
    return answers


def test_the_recorded_version_serves_a_commit_by_another_process_and_its_repeats(
    broker: LocalKafka, job: str, out: str, version: int
) -> None:
    """Version 4 leaves the epoch, so the brokers know a repeat; version 5 raises it by one, and they still do."""
    with SinkJob(broker.bootstrap_servers, job, topic=out) as sink:
        (committable,) = sink.prepared(1, [b"a"])
        transaction = KafkaCommittable.of(committable).transaction
        assert transaction.version == (5 if version == 2 else 4)
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as elsewhere:
            answers = elsewhere.submit(commit_twice, sink.servers, job, committable).result()
        assert answers == [ErrorCode.NONE, ErrorCode.NONE]
        assert sink.view(committable).epoch - transaction.epoch == (1 if version == 2 else 0)
        opposite = sink.transactions.end([transaction], commit=False)[transaction.id]
        assert classify(opposite) is EndAnswer.DOUBT, "a refusal proves nothing"
        assert sink.system().outcome(committable).outcome is Outcome.COMMITTED
    assert Topics(broker.bootstrap_servers, job).values(out) == [b"a"]


@pytest.mark.kill
@pytest.mark.parametrize("version", [0, pytest.param(1, marks=pytest.mark.crash)], ids=["tv0", "tv1"], indirect=True)
def test_a_job_is_killed_between_two_commits_and_resumes(
    broker: LocalKafka, job: str, out: str, tmp_path: Path
) -> None:
    topics = Topics(broker.bootstrap_servers, job)
    source, sink = topics.create("in", 3), topics.create("copied", 3)
    for partition in range(3):
        values: list[bytes | None] = [b"%d-%d" % (partition, number) for number in range(500)]
        topics.fill(source, values, partition=partition, key=b"key-%d" % partition)
    with JobProcesses(
        tmp_path, job, topics.servers, source, sink, source_options=bounded(300), settings={"interval": "100ms"}
    ) as here:
        killed = here.driver(kill_at=[f"{KillPoint.DRIVER_BETWEEN_END_TXN}:2"])
        here.wait_for_kill(KillPoint.DRIVER_BETWEEN_END_TXN, 2, killed)
        here.finish()
        assert sum(event.get("resumed", 0) for event in here.events("recovered")) == 3
    assert_exactly_once(topics, source, sink)


@pytest.mark.crash
@pytest.mark.kill
@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", [0, 1], ids=["tv0", "tv1"], indirect=True)
def test_a_query_is_killed_between_two_commits_and_a_lost_transaction_is_written_again(
    broker: LocalKafka, job: str, tmp_path: Path
) -> None:
    topics, files = Topics(broker.bootstrap_servers, job), stream_queries.records(5)
    source, sink = tmp_path / "input", topics.create("totals", 2)
    stream_queries.feed(source, files)
    program = "tests.support.stream_queries"
    with JobProcesses(tmp_path, job, topics.servers, str(source), sink, program=program) as here:
        for point, count in ((KillPoint.DRIVER_BETWEEN_END_TXN, 2), (KillPoint.DRIVER_AFTER_DECISION, 2)):
            here.wait_for_kill(point, count, here.driver(kill_at=[f"{point}:{count}"]), SPARK_STARTS_S)
        abort_with_the_brokers_tool(topics.servers, sink, 0)
        here.finish(SPARK_STARTS_S)
        assert sum(event.get("resumed", 0) for event in here.events("recovered")) >= 1
        assert here.events("replayed")
    written = Counter((key, value) for _, _, key, value in topics.read(sink))
    assert written == stream_queries.expected(files)


def raise_epochs(servers: str, name: str, epoch: int) -> None:
    """Call InitProducerId until the next call gives `epoch`. The calls are pipelined: 32,000 take five seconds."""
    host, port = servers.split(",")[0].split(":")
    text = name.encode()
    body = struct.pack(">hhihh", 22, 1, 0, -1, len(text)) + text + struct.pack(">i", 60_000)
    frame = struct.pack(">i", len(body)) + body
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        reached, waiting, buffer = -1, 0, b""
        while reached < epoch - 1:
            fresh = min(50, epoch - 1 - reached) - waiting
            connection.sendall(frame * max(0, fresh))
            waiting += max(0, fresh)
            buffer += connection.recv(65_536)
            while len(buffer) >= 4 and len(buffer) >= 4 + (size := struct.unpack(">i", buffer[:4])[0]):
                code, _, given = struct.unpack(">hqh", buffer[12:24])
                buffer = buffer[4 + size :]
                waiting -= 1
                assert classify(code) is not EndAnswer.DOUBT, code
                reached = max(reached, given)


def at_the_end() -> list[object]:
    """(version, ending, epoch of the transaction); most of them run only in the crash suite."""
    everyday = [(2, "committed", LAST_EPOCH), (2, "timed-out", LAST_EPOCH)]
    return [
        pytest.param(*case, marks=() if case in everyday else (pytest.mark.crash,), id="tv{}-{}-{}".format(*case))
        for case in itertools.product((0, 1, 2), ENDINGS, (LAST_EPOCH - 1, LAST_EPOCH))
    ]


@pytest.mark.parametrize(("version", "ending", "epoch"), at_the_end(), indirect=["version"])
def test_outcomes_are_true_and_fences_hold_where_the_epochs_of_a_producer_end(
    sink: SinkJob, out: str, version: int, ending: str, epoch: int
) -> None:
    """A transaction at one of the last epochs, then another one under its id, with a new producer id or, below version
    2, at the last epoch."""
    name = f"{sink.job}.sink.1.0123456789ab.0"
    raise_epochs(sink.servers, name, epoch)
    steps, expected = ENDINGS[ending]
    committable, zombie = pre_committed(sink, name, out, 1)
    transaction = KafkaCommittable.of(committable).transaction
    assert transaction.epoch == epoch
    for step in steps:
        step(sink, committable)
    delete_receipt(sink, committable)
    (settlement,) = sink.system().commit(sink.author, [committable])
    assert settlement.outcome is expected, settlement.evidence
    following, _ = pre_committed(sink, name, out, 2)
    after = KafkaCommittable.of(following).transaction
    assert after.producer_id != transaction.producer_id or (version < 2 and after.epoch == LAST_EPOCH)
    with pytest.raises((KafkaException, SystemError)):
        go_on(zombie, out)
    assert sink.system().commit(sink.author, [following])[0].outcome is Outcome.COMMITTED
    visible = [b"1", b"2"] if expected is Outcome.COMMITTED else [b"2"]
    assert Topics(sink.servers, sink.job).values(out) == visible


def test_a_claim_outlives_the_last_epoch_of_its_producer_though_an_answer_is_lost(
    sink: SinkJob, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At version 2 EndTxn steps beyond the last epoch. Below, InitProducerId steps to it, and brokers answer its
    repetition with UNKNOWN_SERVER_ERROR, each time."""
    step, before = (EndTxnRequest, LAST_EPOCH) if version == 2 else (InitProducerIdRequest, LAST_EPOCH - 1)
    claim = Claim(store_id="store", generation=Generation(1), completed=CheckpointId(0), holder="holder")
    raise_epochs(sink.servers, claim_name(sink.job), LAST_EPOCH - 1)
    asked: list[Code] = []
    limit = time.monotonic() + 60

    def give_up() -> bool:
        return time.monotonic() > limit

    def ask(holder: ClaimHolder, kind: CoordinatorKind, request: Any) -> Operation[Any]:
        answer = yield from whole(holder, kind, request)
        if getattr(request, "producer_epoch", None) != before or not isinstance(request, step):
            return answer
        if answer.error_code != ErrorCode.CONCURRENT_TRANSACTIONS:
            asked.append(answer.error_code)
        return NoAnswer(why="lost") if asked == [ErrorCode.NONE] else answer

    def written() -> bool:
        # A renewal before them is repeated under the next epoch, and the steps counted here would be others.
        name = claim_name(sink.job)
        return sink.transactions.describe([name])[name].state in (State.COMPLETE_COMMIT, State.EMPTY)

    whole = ClaimHolder._asking
    monkeypatch.setattr(ClaimHolder, "_asking", ask)
    sink.take_claim(claim, None)
    for completed in range(1, 5):
        wait_until(written, "the markers of the last write")
        claim = replace(claim, completed=CheckpointId(completed))
        assert sink.own.renew_claim(claim, give_up=give_up), asked
    refused = [] if version == 2 else [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert asked == [ErrorCode.NONE, *refused], "the brokers no longer refuse the repeated step"
    sink.wait_for_claim(claim)


def go_on(zombie: Producer, out: str) -> None:
    """Try what a process that was paused would still try."""
    zombie.produce(out, b"from the grave")
    zombie.flush(10)
    zombie.commit_transaction(10)


def pre_committed(sink: SinkJob, name: str, out: str, checkpoint: int) -> tuple[Committable, Producer]:
    """Pre-commit a transaction under a chosen id through the product's own code; return it and its producer."""
    value = b"%d" % checkpoint
    producer = client(sink.servers, name)
    consumer = Consumer({"bootstrap.servers": sink.servers, "group.id": name, "log_level": 0})
    producer.begin_transaction()
    producer.produce(out, value)
    receipt = TopicPartition("onceward", 0, checkpoint, metadata=f"token-{checkpoint}")
    producer.send_offsets_to_transaction([receipt], consumer.consumer_group_metadata(), 10)
    assert producer.flush(10) == 0
    consumer.close()
    body = {"id": name, "token": f"token-{checkpoint}", "topics": {out: 1}, "timeout_ms": TIMEOUT_S * 1000}
    vote = Vote(slot=0, attempt=checkpoint, records=1, bytes=len(value), body=body)
    (committable,) = sink.pre_commit(CheckpointId(checkpoint), [vote])
    return committable, producer


def set_version(sink: SinkJob, version: int) -> None:
    """Change the cluster's version, as an operator does in an upgrade or a downgrade."""
    now = sink.control.transaction_version()
    if now == version:
        return
    update = UpdateFeaturesRequest.FeatureUpdateKey(
        feature="transaction.version", max_version_level=version, upgrade_type=1 if version > now else 2
    )
    answer = sink.control.ask(UpdateFeaturesRequest(feature_updates=[update], min_version=1, max_version=1))
    assert answer.error_code == 0
    wait_until(lambda: sink.control.transaction_version() == version, "the brokers know it")


@pytest.mark.crash
@pytest.mark.parametrize("version", [0], ids=["tv0"], indirect=True)
@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (2, 1), (0, 1), (1, 0)])
def test_outcomes_are_true_when_the_cluster_changes_its_version_while_transactions_are_pending(
    broker: LocalKafka, sink: SinkJob, out: str, version: int, before: int, after: int
) -> None:
    needs_transaction_version(max(before, after))
    set_version(sink, before)
    with SinkJob(broker.bootstrap_servers, f"{sink.job}-long", topic=out) as long:
        (short,) = sink.prepared(1, [b"lost"])
        names = [name for name in ENDINGS if not name.startswith("timed-out")]
        *prepared, unended = long.prepared(1, *[[name.encode()] for name in (*names, "late")])
        pending = dict(zip(names, prepared, strict=True))
        assert KafkaCommittable.of(unended).transaction.version == (5 if before == 2 else 4)
        set_version(sink, after)
        time_out(sink, short)
        assert sink.system().commit(sink.author, [short])[0].outcome is Outcome.LOST
        for name, committable in pending.items():
            for step in ENDINGS[name][0]:
                step(long, committable)
            delete_receipt(long, committable)
            (settlement,) = long.system().commit(long.author, [committable])
            assert settlement.outcome is ENDINGS[name][1], (name, settlement.evidence)
        assert long.system().commit(long.author, [unended])[0].outcome is Outcome.COMMITTED
        # A driver that keeps running keeps the version that it started with.
        more = long.prepared(2, [b"more"])
        assert long.system().commit(long.author, more)[0].outcome is Outcome.COMMITTED
    set_version(sink, version)
    committed = [name.encode() for name in names if ENDINGS[name][1] is Outcome.COMMITTED]
    seen = Topics(sink.servers, sink.job).values(out)
    assert sorted(seen, key=str) == sorted([*committed, b"late", b"more"], key=str)
