"""Settling: every way in which a commit can end, on the real broker."""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import pytest
from confluent_kafka import KafkaException, Producer, TopicPartition

from onceward import KafkaCluster
from onceward.common.errors import FencedError, HaltedError
from onceward.common.killpoints import KILL_POINT_VARIABLE
from onceward.dev.kafka import LocalKafka
from onceward.dev.kafka.versions import highest_transaction_version
from onceward.protocol.values import (
    CheckpointId,
    Claim,
    Committable,
    Document,
    Generation,
    JobName,
    Outcome,
)
from onceward.sinks.kafka.control.clock import Clock
from onceward.sinks.kafka.control.committables import KafkaCommittable
from onceward.sinks.kafka.control.control_plane import ControlPlane
from onceward.sinks.kafka.control.fencing import fence_ids
from onceward.sinks.kafka.control.receipts import ReceiptState, read_receipts
from onceward.sinks.kafka.control.system import KafkaSystem
from onceward.sinks.kafka.control.transactions import State
from onceward.sinks.kafka.errors import ContradictionError
from tests.support.shared_kafka import SharedKafka
from tests.support.sink_job import QUICK, SinkJob
from tests.support.topics import Topics
from tests.support.waiting import wait_until


def commit_behind_its_back(sink: SinkJob, committable: Committable) -> None:
    """Commit as if the answer to the commit had been lost."""
    handle = KafkaCommittable.of(committable)
    assert sink.transactions.end([handle.transaction], commit=True)[handle.transaction.id] == 0
    wait_until(lambda: sink.view(committable).state is State.COMPLETE_COMMIT, "committed")


def move_on(sink: SinkJob, committable: Committable) -> None:
    """Take over the id, so that its state no longer says anything about this transaction."""
    fence_ids(sink.control, [KafkaCommittable.of(committable).transaction.id], QUICK)


def outcome_of(sink: SinkJob, committable: Committable) -> tuple[Outcome, str]:
    settlements = sink.system().commit(sink.author, [committable])
    assert [settlement.slot for settlement in settlements] == [committable.slot]
    return settlements[0].outcome, settlements[0].evidence


def test_all_slots_of_a_checkpoint_are_committed_and_only_then_visible(sink: SinkJob, out: str, topics: Topics) -> None:
    committables = sink.prepared(1, [b"a", b"b"], [b"c"], [b"d"])
    assert topics.values(out) == []
    settlements = sink.system().commit(sink.author, committables)
    assert [(each.slot, each.outcome) for each in settlements] == [(slot, Outcome.COMMITTED) for slot in range(3)]
    assert sorted(topics.values(out), key=str) == [b"a", b"b", b"c", b"d"]


def test_a_process_with_only_the_documents_can_commit(sink: SinkJob, kafka: SharedKafka) -> None:
    committables = sink.prepared(1, [b"a"])
    program = (
        "import json, sys\n"
        "from onceward.protocol.values import Author, Committable, Document, JobName, ParticipantName\n"
        "from onceward.sinks.kafka.control.system import KafkaSystem\n"
        "body = json.loads(sys.argv[2])\n"
        "document = Document(kind='kafka-transaction', version=1, body=body)\n"
        "committer = KafkaSystem.open(sys.argv[1])\n"
        "author = Author(job=JobName(sys.argv[3]), participant=ParticipantName('sink'), generations=range(1, 2))\n"
        "print(committer.commit(author, [Committable(slot=0, document=document)])[0].outcome)\n"
        "committer.close()\n"
    )
    arguments = [kafka.bootstrap_servers, json.dumps(committables[0].document.body), sink.job]
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "committed", done.stderr


def test_commit_is_idempotent_even_after_a_lost_answer(sink: SinkJob) -> None:
    committables = sink.prepared(1, [b"a"], [b"b"])
    commit_behind_its_back(sink, committables[0])
    for _ in range(3):
        settlements = sink.system().commit(sink.author, committables)
        assert {each.outcome for each in settlements} == {Outcome.COMMITTED}


def test_lost_to_the_timeout_is_proved_and_not_guessed(kafka: SharedKafka, job: str, out: str) -> None:
    with SinkJob(kafka.bootstrap_servers, job, topic=out, transaction_timeout="1s") as sink:
        (committable,) = sink.prepared(1, [b"a"])
        wait_until(lambda: sink.view(committable).state is State.COMPLETE_ABORT, "the broker aborted it")
        outcome, evidence = outcome_of(sink, committable)
        assert outcome is Outcome.LOST
        assert ("48" if highest_transaction_version() == 2 else "90") in evidence
        assert "CompleteAbort" in evidence
        assert "seen twice" in evidence


def test_lost_to_a_fence_is_proved_by_the_log_of_the_output(sink: SinkJob, out: str) -> None:
    (committable,) = sink.prepared(1, [b"a"])
    move_on(sink, committable)
    assert sink.view(committable).state is State.EMPTY
    outcome, evidence = outcome_of(sink, committable)
    assert outcome is Outcome.LOST
    assert f"{out}-0: the marker at offset 1 is ABORT" in evidence


def test_the_receipt_alone_proves_a_commit_when_the_id_has_moved_on(sink: SinkJob) -> None:
    (committable,) = sink.prepared(1, [b"a"])
    commit_behind_its_back(sink, committable)
    move_on(sink, committable)
    assert sink.view(committable).state is State.EMPTY
    outcome, evidence = outcome_of(sink, committable)
    assert outcome is Outcome.COMMITTED
    assert "receipt present" in evidence


@pytest.mark.parametrize("moved_on", [False, True], ids=["still shown", "id moved on"])
def test_a_deleted_receipt_of_a_commit_whose_answer_was_lost_is_never_called_lost(
    sink: SinkJob, topics: Topics, moved_on: bool
) -> None:
    (committable,) = sink.prepared(1, [b"a"])
    commit_behind_its_back(sink, committable)
    wait_until(lambda: receipt(sink, committable) is ReceiptState.PRESENT, "the receipt is there")
    delete_receipt(sink, committable, topics)
    if moved_on:
        move_on(sink, committable)
        assert sink.view(committable).state is State.EMPTY
    assert sink.system().outcome(committable).outcome is Outcome.COMMITTED
    outcome, evidence = outcome_of(sink, committable)
    assert outcome is Outcome.COMMITTED
    assert "is COMMIT" in evidence


def test_a_deleted_receipt_and_records_that_are_gone_from_the_log_are_in_doubt_and_not_lost(
    sink: SinkJob, topics: Topics, out: str
) -> None:
    (committable,) = sink.prepared(1, [b"a"])
    commit_behind_its_back(sink, committable)
    wait_until(lambda: receipt(sink, committable) is ReceiptState.PRESENT, "the receipt is there")
    delete_receipt(sink, committable, topics)
    move_on(sink, committable)
    topics.admin.delete_records([TopicPartition(out, 0, 2)])[TopicPartition(out, 0)].result(30)
    outcome, evidence = outcome_of(sink, committable)
    assert outcome is Outcome.IN_DOUBT
    assert "its records are not in the log, which begins at offset 2" in evidence


def delete_receipt(sink: SinkJob, committable: Committable, topics: Topics) -> None:
    group = KafkaCommittable.of(committable).transaction.id
    topics.admin.delete_consumer_groups([group])[group].result(30)
    assert receipt(sink, committable) is ReceiptState.ABSENT


def receipt(sink: SinkJob, committable: Committable) -> ReceiptState:
    handle = KafkaCommittable.of(committable)
    return read_receipts(sink.control, {handle.transaction.id: handle.token})[handle.transaction.id].state


def test_another_cluster_behind_the_same_address_leaves_the_outcome_in_doubt(sink: SinkJob) -> None:
    (committable,) = sink.prepared(1, [b"a"])
    handle = replace(KafkaCommittable.of(committable), cluster_id="another-cluster-id")
    outcome, evidence = outcome_of(sink, handle.to_committable())
    assert outcome is Outcome.IN_DOUBT
    assert "another-cluster-id" in evidence
    assert sink.view(committable).state is State.ONGOING


def test_an_id_that_another_process_reopened_is_fenced_before_it_is_judged(sink: SinkJob, out: str) -> None:
    (committable,) = sink.prepared(1, [b"a"])
    handle = KafkaCommittable.of(committable)
    hijacker = Producer({"bootstrap.servers": sink.servers, "transactional.id": handle.transaction.id, "log_level": 0})
    hijacker.list_topics(timeout=10)
    hijacker.init_transactions(10)
    hijacker.begin_transaction()
    hijacker.produce(out, b"foreign")
    assert hijacker.flush(10) == 0
    assert sink.view(committable).state is State.ONGOING
    outcome, _ = outcome_of(sink, committable)
    assert outcome is Outcome.LOST
    assert sink.view(committable).state in (State.EMPTY, State.COMPLETE_ABORT)
    with pytest.raises(KafkaException):
        hijacker.commit_transaction(10)


def test_an_unanswered_commit_is_not_reported_when_the_committer_times_out(sink: SinkJob, kafka: SharedKafka) -> None:
    committables = sink.prepared(1, [b"a"])
    asked = itertools.count()
    unreachable = KafkaSystem(ControlPlane(KafkaCluster("127.0.0.1:1")), clock=QUICK)
    assert list(unreachable.commit(sink.author, committables, give_up=lambda: next(asked) >= 0)) == []
    unreachable.close()
    assert sink.view(committables[0]).state is State.ONGOING
    assert sink.system().commit(sink.author, committables)[0].outcome is Outcome.COMMITTED


def test_a_commit_outlasts_a_broker_that_is_killed_and_comes_back(job: str) -> None:
    with LocalKafka(heap="256m") as local:
        topics = Topics(local.bootstrap_servers, job)
        out = topics.create("out")
        with SinkJob(local.bootstrap_servers, job, topic=out) as sink:
            committables = sink.prepared(1, [b"a"], [b"b"])
            local.kill()
            restarting = threading.Thread(target=local.restart)
            restarting.start()
            settlements = sink.system(Clock()).commit(sink.author, committables)
            restarting.join()
            assert [each.outcome for each in settlements] == [Outcome.COMMITTED] * 2
            assert sorted(topics.values(out), key=str) == [b"a", b"b"]


def test_outcome_changes_nothing(sink: SinkJob) -> None:
    (committable,) = sink.prepared(1, [b"a"])
    assert sink.system().outcome(committable).outcome is Outcome.IN_DOUBT
    assert sink.view(committable).state is State.ONGOING


def test_abort_ends_open_transactions_and_may_be_repeated(sink: SinkJob, topics: Topics, out: str) -> None:
    committables = sink.prepared(1, [b"a"], [b"b"])
    for _ in range(2):
        sink.system().abort(sink.author, committables)
    assert {sink.view(each).state for each in committables} <= {State.COMPLETE_ABORT, State.PREPARE_ABORT}
    assert topics.values(out) == []
    assert sink.system().leftovers(sink.job) == []


def test_abort_of_a_fenced_transaction_is_fine(sink: SinkJob) -> None:
    committables = sink.prepared(1, [b"a"])
    move_on(sink, committables[0])
    sink.system().abort(sink.author, committables)


def test_abort_of_a_committed_transaction_is_loud(sink: SinkJob) -> None:
    committables = sink.prepared(1, [b"a"])
    commit_behind_its_back(sink, committables[0])
    with pytest.raises(ContradictionError, match="committed"):
        sink.system().abort(sink.author, committables)


def test_a_document_of_another_version_is_refused_before_any_request(sink: SinkJob) -> None:
    (committable,) = sink.prepared(1, [b"a"])
    unknown = Document(kind="kafka-transaction", version=99, body=committable.document.body)
    with pytest.raises(HaltedError):
        sink.system().commit(sink.author, [committable, Committable(slot=1, document=unknown)])
    assert sink.view(committable).state is State.ONGOING


def test_a_sweep_aborts_leftovers_and_keeps_unsettled_transactions(sink: SinkJob, out: str, topics: Topics) -> None:
    kept = sink.prepared(1, [b"kept"])
    left, producer = sink.open_transaction(out)
    committer = sink.system()
    assert list(committer.leftovers(sink.job, keep=kept)) == [left]
    assert list(committer.sweep(sink.job, keep=kept)) == [left]
    assert list(committer.leftovers(sink.job, keep=kept)) == []
    assert committer.commit(sink.author, kept)[0].outcome is Outcome.COMMITTED
    assert topics.values(out) == [b"kept"]
    del producer


def test_a_sweep_leaves_other_jobs_alone_even_when_their_names_begin_alike(
    kafka: SharedKafka, job: str, out: str
) -> None:
    others = [SinkJob(kafka.bootstrap_servers, name, topic=out) for name in (f"{job}-b", f"{job}b")]
    theirs = [other.prepared(1, [b"theirs"]) for other in others]
    with SinkJob(kafka.bootstrap_servers, job, topic=out) as mine:
        mine.open_transaction(out)
        assert len(mine.system().sweep(JobName(job))) == 1
    for other, committables in zip(others, theirs, strict=True):
        assert other.system().commit(other.author, committables)[0].outcome is Outcome.COMMITTED
        other.close()


def test_a_process_that_was_taken_over_does_not_touch_its_successor(kafka: SharedKafka, job: str, out: str) -> None:
    with (
        SinkJob(kafka.bootstrap_servers, job, topic=out, generation=1) as paused,
        SinkJob(kafka.bootstrap_servers, job, topic=out, generation=2) as successor,
    ):
        theirs = successor.prepared(1, [b"theirs"])
        with pytest.raises(FencedError, match="taken over"):
            paused.sink.system().sweep(paused.job)
        with pytest.raises(FencedError):
            paused.prepared(1, [b"mine"])
        assert successor.system().commit(successor.author, theirs)[0].outcome is Outcome.COMMITTED


def test_a_claim_is_read_back_as_it_was_written(sink: SinkJob) -> None:
    assert sink.read_claim() is None
    for number, completed in enumerate((0, 7, 3)):
        claim = Claim(store_id="store", generation=Generation(4), completed=CheckpointId(completed), holder="driver")
        if number:
            assert sink.own.renew_claim(claim)
        else:
            sink.take_claim(claim, None)
        sink.wait_for_claim(claim)


@pytest.mark.kill
def test_a_kill_between_two_ends_leaves_the_rest_to_the_next_commit(sink: SinkJob, kafka: SharedKafka) -> None:
    committables = sink.prepared(1, [b"a"], [b"b"], [b"c"])
    program = (
        "import json, sys\n"
        "from onceward.protocol.values import Author, Committable, Document, JobName, ParticipantName\n"
        "from onceward.sinks.kafka.control.system import KafkaSystem\n"
        "documents = [Document(kind='kafka-transaction', version=1, body=body) for body in json.loads(sys.argv[2])]\n"
        "author = Author(job=JobName(sys.argv[3]), participant=ParticipantName('sink'), generations=range(1, 2))\n"
        "committables = [Committable(slot=s, document=d) for s, d in enumerate(documents)]\n"
        "KafkaSystem.open(sys.argv[1]).commit(author, committables)\n"
    )
    arguments = [kafka.bootstrap_servers, json.dumps([dict(each.document.body) for each in committables]), sink.job]
    environment = {**os.environ, KILL_POINT_VARIABLE: "driver.between_end_txn"}
    killed = subprocess.run([sys.executable, "-c", program, *arguments], env=environment, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    wait_until(lambda: sink.view(committables[0]).state is State.COMPLETE_COMMIT, "the first one was committed")
    assert [sink.view(each).state for each in committables[1:]] == [State.ONGOING] * 2
    assert {each.outcome for each in sink.system().commit(sink.author, committables)} == {Outcome.COMMITTED}
