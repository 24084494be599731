"""A job's waits are shown with their start, and its oldest transaction with its age."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest

from onceward.client.operators import OperatorClient
from onceward.client.session import CoordinatorClient, connect
from onceward.common.errors import FencedError, OncewardError
from onceward.common.links import Links
from onceward.coordinator.service.embedded import EmbeddedCoordinator
from onceward.coordinator.service.job_summaries import JobSummaries
from onceward.coordinator.service.reports import Reports, read_report
from onceward.coordinator.store.reading import LastCompleted
from onceward.operate import listings
from onceward.operate.listings import job_detail
from onceward.operate.tables import Times
from onceward.protocol.answers import Complete, Instruction, Trigger, Verdict
from onceward.protocol.committing import Age
from onceward.protocol.events import CloseReason
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.status import JobStatus
from onceward.protocol.values import (
    NO_CHECKPOINT,
    CheckpointId,
    Generation,
    JobName,
    Outcome,
    Settlement,
)
from onceward.wire.limits import MAX_SHOWN_TEXT, MAX_TEXT
from onceward.wire.rows import JobSummary, JobWait
from onceward.wire.v1 import participants_pb2 as pb
from onceward.wire.v1.participants_pb2_grpc import ParticipantServiceStub
from tests.support.scripted import SINK, SOURCE, positions, slots
from tests.support.waiting import wait_until
from tests.unit.service.test_orphans import JOB, Brokers, Here, play, until

SETTINGS = CheckpointSettings(interval="5ms", lease="3s", stream_grace="1s", orphan_grace="10s")


def whats(people: OperatorClient, job: str) -> list[str]:
    return [wait.what for wait in people.job(JobName(job)).waits]


def shown_now() -> Times:
    return Times(now=datetime.now(UTC), utc=False)


def shown_for(people: OperatorClient, job: str, what: str) -> timedelta:
    (since,) = [wait.since for wait in people.job(JobName(job)).waits if wait.what == what]
    assert since is not None
    return datetime.now(UTC) - since


def test_a_checkpoint_shows_what_it_waits_for_at_every_step(
    client: CoordinatorClient, people: OperatorClient, job: str
) -> None:
    session = client.open_job(JobName(job), (SOURCE, SINK), SETTINGS, None, driver="d")
    assert whats(people, job) == ["its driver to take instructions"]
    wanted: list[Instruction] = []
    session.start_watch(wanted.append)
    one, two, three = CheckpointId(1), CheckpointId(2), CheckpointId(3)
    wait_until(lambda: Trigger(checkpoint=one, base=NO_CHECKPOINT) in wanted, "the first trigger arrives")
    both = f"the driver's acknowledgement of checkpoint {one} for source and sink"
    assert whats(people, job) == [both]
    assert timedelta(0) <= shown_for(people, job, both) < timedelta(minutes=1)
    session.acknowledge(one, NO_CHECKPOINT, {SOURCE.name: positions(0)})
    assert whats(people, job) == [f"the driver's acknowledgement of checkpoint {one} for sink"]
    session.acknowledge(one, NO_CHECKPOINT, {SINK.name: slots(1, 0)})
    wait_until(lambda: any(isinstance(i, Trigger) and i.checkpoint == two for i in wanted), "the second one")
    session.acknowledge(two, one, {SOURCE.name: positions(1), SINK.name: slots(2, 3)})
    wait_until(lambda: Complete(checkpoint=two) in wanted, "it is completed")
    wait_until(lambda: any(isinstance(i, Trigger) and i.checkpoint == three for i in wanted), "the third one")
    session.acknowledge(three, two, {SOURCE.name: positions(2), SINK.name: slots(3, 1)})
    settling = [
        "settling checkpoint 2: 3 commits are not proved",
        "checkpoint 2 to be settled before checkpoint 3 is completed",
    ]
    assert whats(people, job) == settling
    committed = [Settlement(slot=slot, outcome=Outcome.COMMITTED, evidence="seen") for slot in range(3)]
    session.settle(two, SINK.name, committed[:1])
    assert whats(people, job)[0] == "settling checkpoint 2: 2 commits are not proved"
    session.settle(two, SINK.name, committed)
    wait_until(lambda: "settling checkpoint 3: 1 commits are not proved" in whats(people, job), "the next one settles")
    session.close(CloseReason.STOPPED)


def test_a_lease_renewal_reports_broken_links_and_transaction_ages(
    coordinator: EmbeddedCoordinator, people: OperatorClient, job: str
) -> None:
    links = Links()
    links.failed("cluster 'main'", "timed out", waiting="4 EndTxn")
    links.failed("an open transaction in in-0 at offset 5", "producer 7", waiting="20 offsets", held=True)
    oldest = Age(transaction="orders.sink.1.a.0", open_for=timedelta(minutes=6), timeout=timedelta(minutes=15))
    reported: list[Age | None] = [oldest]
    with connect(coordinator.address, links=links) as client:
        session = client.open_job(JobName(job), (SOURCE, SINK), SETTINGS, None, driver="d")
        session.report_oldest(lambda: reported[-1])
        wait_until(lambda: people.job(JobName(job)).oldest_transaction, "a renewal reports it")
        summary = people.job(JobName(job))
        assert "cluster 'main', which does not answer the driver (4 EndTxn: timed out)" in whats(people, job)
        assert "an open transaction in in-0 at offset 5 (20 offsets: producer 7)" in whats(people, job)
        assert summary.oldest_transaction is not None
        assert replace(summary.oldest_transaction, open_for=oldest.open_for) == oldest
        assert summary.oldest_transaction.open_for >= oldest.open_for
        assert "oldest pre-committed transaction open for 6 min" in job_detail(summary, shown_now())
        links.worked("cluster 'main'")
        reported.append(None)
        wait_until(lambda: people.job(JobName(job)).oldest_transaction is None, "the next renewal takes it back")
        assert not [what for what in whats(people, job) if "cluster" in what]
        session.close(CloseReason.STOPPED)


def test_a_drivers_open_instruction_is_shown_until_a_renewal_reports_it_done(
    client: CoordinatorClient, people: OperatorClient, job: str
) -> None:
    settings = replace(SETTINGS, tolerable_failed_checkpoints=1000, lease="60s", orphan_grace="60s")
    session = client.open_job(JobName(job), (SOURCE, SINK), settings, None, driver="d")
    wanted: list[Instruction] = []
    session.start_watch(wanted.append)
    wait_until(lambda: any(isinstance(one, Trigger) for one in wanted), "the first trigger arrives")
    session.decline(CheckpointId(1), SINK.name, "no")
    owed = "its driver to abort checkpoint 1"
    assert owed in whats(people, job)
    session.renew()
    assert owed in whats(people, job)
    session.report_aborted(lambda: CheckpointId(1))
    session.renew()
    assert owed not in whats(people, job)
    session.close(CloseReason.STOPPED)


def test_a_driver_that_leaves_for_a_while_learns_that_another_one_has_the_job(
    client: CoordinatorClient, job: str
) -> None:
    first = client.open_job(JobName(job), (SOURCE, SINK), SETTINGS, None, driver="first")
    assert client.open_job(JobName(job), (SOURCE, SINK), SETTINGS, None, driver="first").abandon("x") is None
    assert first.abandon("said again", back_within_s=1.0) is None
    client.open_job(JobName(job), (SOURCE, SINK), SETTINGS, None, driver="second").let_go()
    assert isinstance(first.abandon("failed", back_within_s=1.0), FencedError)


def test_a_driver_that_needs_a_person_leaves_the_job_halted_with_the_reason_shown(
    client: CoordinatorClient, people: OperatorClient, job: str
) -> None:
    session = client.open_job(JobName(job), (SOURCE, SINK), SETTINGS, None, driver="d")
    session.abandon("input of orders-0 is gone", halted=True)
    found = people.job(JobName(job))
    assert (found.status, found.status_detail) == (JobStatus.HALTED, "input of orders-0 is gone")
    assert whats(people, job) == ["a person to decide"]
    assert people.cancel(JobName(job)).verdict is Verdict.ACCEPTED
    assert people.job(JobName(job)).status is JobStatus.CANCELLED


def test_a_cancelled_job_without_a_driver_shows_what_it_waits_for(
    client: CoordinatorClient, people: OperatorClient, job: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listings, "_USUAL", timedelta())  # list even the shortest wait
    settings = replace(SETTINGS, lease="1s", orphan_grace="1s")
    session = client.open_job(JobName(job), (SOURCE, SINK), settings, None, driver="d")
    wanted: list[Instruction] = []
    session.start_watch(wanted.append)
    one, two = CheckpointId(1), CheckpointId(2)
    wait_until(lambda: Trigger(checkpoint=one, base=NO_CHECKPOINT) in wanted, "the first trigger arrives")
    session.acknowledge(one, NO_CHECKPOINT, {SOURCE.name: positions(0), SINK.name: slots(1, 0)})
    wait_until(lambda: any(isinstance(i, Trigger) and i.checkpoint == two for i in wanted), "the second one")
    session.acknowledge(two, one, {SOURCE.name: positions(1), SINK.name: slots(2, 1)})
    assert people.cancel(JobName(job)).verdict is Verdict.ACCEPTED
    session.let_go()
    wait_until(lambda: people.job(JobName(job)).status is JobStatus.SUSPENDED, "the driver is given up")
    assert people.cancel(JobName(job)).verdict is Verdict.DUPLICATE
    text = "the coordinator or the next driver to settle checkpoint 2, after which it is cancelled"
    assert text in whats(people, job)
    detail = job_detail(people.job(JobName(job)), shown_now())
    assert text in detail
    assert "asked to cancel" in detail


def test_a_broken_stream_is_distinguished_from_an_old_generation(
    coordinator: EmbeddedCoordinator, people: OperatorClient, job: str
) -> None:
    """A generation's report ends with the generation."""
    links = Links()
    links.failed("cluster 'main'", "timed out", waiting="4 EndTxn")
    with connect(coordinator.address, links=links) as client:
        session = client.open_job(JobName(job), (SOURCE, SINK), SETTINGS, None, driver="d")
        session.start_watch(lambda _instruction: None)
        wait_until(lambda: any("cluster" in what for what in whats(people, job)), "the driver reports")
    wait_until(lambda: "the instruction stream of its driver" in whats(people, job), "the stream is gone")
    session.abandon("gone")
    with connect(coordinator.address) as client:
        following = client.open_job(JobName(job), (SOURCE, SINK), SETTINGS, None, driver="e", takeover=True)
        assert not [what for what in whats(people, job) if "cluster" in what]
        following.close(CloseReason.STOPPED)


def test_a_report_that_means_nothing_is_refused(coordinator: EmbeddedCoordinator, channel: grpc.Channel) -> None:
    stub = ParticipantServiceStub(channel)
    many = [pb.LinkTrouble(link="a")] * 17
    for troubles in (many, [pb.LinkTrouble(link="a" * 10_000)]):
        with pytest.raises(grpc.RpcError) as refused:
            stub.Renew(pb.RenewRequest(job="j", generation=1, driver="d", troubles=troubles), timeout=10.0)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_long_texts_of_a_report_are_cut() -> None:
    long = "x" * MAX_TEXT
    report = read_report(
        pb.RenewRequest(
            generation=1,
            troubles=[pb.LinkTrouble(link=long, why=long, waiting=long)],
            oldest=pb.TransactionAge(transaction=long, timeout_us=1),
            progress=pb.ReadProgress(partitions=[pb.PartitionLag(partition=long)]),
        ),
        now=0.0,
    )
    assert report.oldest is not None
    assert report.progress is not None
    (trouble,), (partition,) = report.troubles, report.progress.partitions
    texts = {trouble.link, trouble.why, trouble.waiting, report.oldest.transaction, partition.partition}
    assert texts == {"x" * (MAX_SHOWN_TEXT - 3) + "..."}


def summary_of(here: Here) -> JobSummary:
    """Return the summary that listings show of the job."""
    nothing = LastCompleted()  # only the disk thread may use the store, which records nothing about waits
    summaries = JobSummaries(here.engine, Reports(), here.orphans)
    summaries.look([here.engine.state(JOB)])
    return summaries.of(JOB, nothing)


def test_the_coordinator_reports_the_cluster_that_blocks_settling_and_the_oldest_transaction(tmp_path: Path) -> None:
    brokers = Brokers()
    brokers.silent.set()
    brokers.trouble["sweep main"] = [OncewardError("no answer from 1") for _ in range(1000)]

    async def body(here: Here) -> None:
        checkpoint = await here.orphan()
        here.after_the_grace_time()
        await until(lambda: here.orphans.links.troubles(), "the cluster does not answer")
        waiting = [wait.what for wait in summary_of(here).waits]
        assert waiting == [
            f"settling checkpoint {checkpoint}: 2 commits are not proved",
            "cluster 'main', which does not answer the coordinator (no answer from 1)",
        ]
        oldest = summary_of(here).oldest_transaction
        assert oldest is not None
        assert (oldest.transaction, oldest.open_for, oldest.timeout) == (
            "t1",
            timedelta(minutes=2),
            timedelta(minutes=15),
        )
        brokers.trouble.clear()
        brokers.silent.clear()
        await until(lambda: here.settled, "it is settled")
        await until(lambda: not here.orphans.links.troubles(), "and the link works")
        assert (summary_of(here).waits, summary_of(here).oldest_transaction) == ((), None)

    play(tmp_path, body, brokers)


@pytest.mark.parametrize(("seconds", "shown"), [(1, False), (60, True)])
def test_only_unusually_long_waits_are_logged(seconds: int, shown: bool) -> None:
    summary = JobSummary(
        job=JOB, status=JobStatus.RUNNING, status_detail="", generation=Generation(1), last_checkpoint=CheckpointId(1),
        last_completed=NO_CHECKPOINT,
        last_completed_at=None, settled=True, ending=None, failures=0, failure="", open_requests=(), unreadable="",
        restore_from=NO_CHECKPOINT, restore_reason="", orphan="", unacknowledged_losses=0, oldest_transaction=None,
        waits=(JobWait(what="something", since=datetime.now(UTC) - timedelta(seconds=seconds)),),
        takeover_permitted=False, adoption_permitted=None,
    )  # fmt: skip
    assert ("for something" in job_detail(summary, shown_now())) is shown
