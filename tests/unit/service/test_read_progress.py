"""How far and how fast a driver reads is listed as it last reported it, and is unknown until then."""

import math
import os
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc
import pytest

from onceward.client.operators import OperatorClient
from onceward.client.session import CoordinatorClient, Session, connect
from onceward.coordinator.service.embedded import EmbeddedCoordinator
from onceward.coordinator.service.reports import MAX_RECENT, Report, Reports
from onceward.protocol.events import CloseReason
from onceward.protocol.read_progress import PartitionLag, ReadProgress
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import Generation, JobName
from onceward.wire.limits import MAX_SHOWN_PARTITIONS
from onceward.wire.v1 import participants_pb2 as pb
from onceward.wire.v1.participants_pb2_grpc import ParticipantServiceStub
from tests.support.scripted import SINK, SOURCE

SETTINGS = CheckpointSettings(interval=None, lease="1min", orphan_grace="2min")
"""The test renews, not the session's thread."""


def reached(lag: int | None, rate: float = 10.0, *partitions: PartitionLag) -> ReadProgress:
    return ReadProgress(lag=lag, measured_ago=timedelta(seconds=3), records_per_second=rate, partitions=partitions)


def opened(client: CoordinatorClient, job: str, driver: str = "d") -> Session:
    return client.open_job(JobName(job), (SOURCE, SINK), SETTINGS, None, driver=driver)


def renew(session: Session, *reports: ReadProgress | None) -> None:
    for report in reports:
        session.report_progress(lambda report=report: report)  # type: ignore[misc]
        session.renew()


def test_the_lag_is_listed_as_the_driver_reported_it(
    client: CoordinatorClient, people: OperatorClient, job: str
) -> None:
    session, name = opened(client, job), JobName(job)
    renew(session, None)
    assert people.job(name).progress is None, "nothing is planned yet"
    assert people.describe(name).partitions == ()
    partitions = [PartitionLag(partition=f"orders-{n}", position=100 + n, lag=n) for n in range(70)]
    unknown = PartitionLag(partition="orders-away", position=7, lag=None)
    renew(session, reached(900), reached(2415, 12.5, *partitions, unknown))
    progress = people.job(name).progress
    assert progress is not None
    assert (progress.lag, progress.records_per_second) == (2415, 12.5)
    assert (progress.recent_lag, progress.recent_records_per_second) == ((900, 2415), (10.0, 12.5))
    assert progress.measured_at is not None
    assert timedelta(seconds=2) < datetime.now(UTC) - progress.measured_at < timedelta(minutes=5)
    described = people.describe(name)
    assert described.partitions == (unknown, *partitions[:-MAX_SHOWN_PARTITIONS:-1]), "what is worst comes first"
    assert described.other_partitions == 71 - MAX_SHOWN_PARTITIONS
    renew(session, reached(0, 0.0))
    assert people.job(name).progress == replace(
        progress,
        lag=0,
        records_per_second=0.0,
        recent_lag=(900, 2415, 0),
        recent_records_per_second=(10.0, 12.5, 0.0),
        measured_at=(people.job(name).progress or progress).measured_at,
    )
    session.close(CloseReason.STOPPED)
    assert people.job(name).progress is None, "without a driver the lag is unknown"


def test_the_machine_of_the_driver_is_listed_from_its_first_report_until_it_leaves(
    client: CoordinatorClient, people: OperatorClient, job: str
) -> None:
    session, name = opened(client, job), JobName(job)
    renew(session, None)
    assert people.job(name).machine == f"{socket.gethostname()}:{os.getpid()}"
    session.close(CloseReason.STOPPED)
    assert people.job(name).machine == ""


def test_the_course_continues_over_a_restart_of_the_job_and_not_over_its_end(
    client: CoordinatorClient, people: OperatorClient, job: str
) -> None:
    def lags() -> tuple[int, ...]:
        progress = people.job(JobName(job)).progress
        return progress.recent_lag if progress is not None else ()

    session = opened(client, job)
    renew(session, reached(3), reached(4))
    session.abandon("it failed", back_within_s=60)
    assert lags() == ()
    session = opened(client, job, "e")
    assert lags() == (), "the next generation has not reported"
    renew(session, reached(5))
    assert lags() == (3, 4, 5)
    session.close(CloseReason.STOPPED)
    session = opened(client, job, "f")
    renew(session, reached(6))
    assert lags() == (6,)
    session.close(CloseReason.STOPPED)


def test_a_source_that_does_not_know_its_lag_has_a_rate_and_no_lag(
    client: CoordinatorClient, people: OperatorClient, job: str
) -> None:
    session = opened(client, job)
    renew(session, reached(None, 5.0))
    progress = people.job(JobName(job)).progress
    assert progress is not None
    assert (progress.lag, progress.recent_lag, progress.records_per_second) == (None, (), 5.0)
    session.close(CloseReason.STOPPED)


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory with a short path: with a long one, each coordinator has another socket."""
    with TemporaryDirectory() as directory:
        yield Path(directory)


def test_after_a_restart_of_the_coordinator_the_lag_is_unknown_until_the_driver_reports(
    on: Callable[..., EmbeddedCoordinator], short: Path, job: str
) -> None:
    first = on(short)
    with connect(first.address) as client:
        session = opened(client, job)
        renew(session, reached(5))
        first.close()
        second = on(short)
        assert second.address == first.address
        with OperatorClient(second.address) as people:
            assert people.job(JobName(job)).progress is None
            session.renew()
            progress = people.job(JobName(job)).progress
            assert progress is not None
            assert progress.lag == 5
        session.close(CloseReason.STOPPED)


def test_numbers_that_mean_nothing_are_refused_and_change_nothing(
    client: CoordinatorClient, people: OperatorClient, channel: grpc.Channel, job: str
) -> None:
    session = opened(client, job)
    renew(session, reached(5))
    before = people.job(JobName(job)).progress
    stub = ParticipantServiceStub(channel)
    for wrong in (
        *(pb.ReadProgress(lag=number) for number in (-1, 2**53, 2**63 - 1)),
        *(pb.ReadProgress(records_per_second=number) for number in (-0.1, math.nan, math.inf, 1e300)),
        *(pb.ReadProgress(measured_us=number) for number in (-1, 2**63 - 1)),
        pb.ReadProgress(other_partitions=-1),
        pb.ReadProgress(partitions=[pb.PartitionLag(partition="a")] * (MAX_SHOWN_PARTITIONS + 1)),
        pb.ReadProgress(partitions=[pb.PartitionLag(partition="a" * 10_000)]),
        pb.ReadProgress(partitions=[pb.PartitionLag(partition="a", position=-1)]),
        pb.ReadProgress(partitions=[pb.PartitionLag(partition="a", lag=-1)]),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            stub.Renew(pb.RenewRequest(job=job, generation=1, driver="d", progress=wrong), timeout=10.0)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert people.job(JobName(job)).progress == before
    session.close(CloseReason.STOPPED)


def test_of_many_reports_the_latest_are_kept_and_a_new_generation_begins_with_nothing_read() -> None:
    reports, job = Reports(), JobName("j")

    def note(generation: int, lag: int, rate: float) -> None:
        made = Report(generation=Generation(generation), at=0.0, troubles=(), oldest=None, progress=reached(lag, rate))
        reports.note(job, made)

    for number in range(100):
        note(1, number, float(number))
    kept = reports.of(job, Generation(1))
    assert kept is not None
    assert kept.recent_lag == tuple(range(100 - MAX_RECENT, 100))
    note(2, 7, 3.0)
    assert reports.of(job, Generation(1)) is None
    following = reports.of(job, Generation(2))
    assert following is not None
    assert following.recent_rates[-3:] == (99.0, 0.0, 3.0)
    assert len(following.recent_rates) == MAX_RECENT
