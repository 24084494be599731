"""Every number of the wire has bounds, and what one job's driver reports costs no other job's row."""

from collections.abc import Callable, Iterator
from copy import deepcopy
from datetime import timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from onceward.client.calls import open_channel
from onceward.client.operators import OperatorClient
from onceward.client.session import CoordinatorClient, Session, connect
from onceward.coordinator.service.embedded import EmbeddedCoordinator
from onceward.coordinator.service.job_summaries import JobSummaries
from onceward.coordinator.service.reports import Report
from onceward.protocol.committing import Age
from onceward.protocol.read_progress import ReadProgress
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.state import JobState
from onceward.protocol.status import JobStatus
from onceward.protocol.values import MAX_ID, JobName
from onceward.watch.metrics.coordinator import CoordinatorMetrics
from onceward.wire.v1 import operators_pb2, participants_pb2
from onceward.wire.values import PARTICIPANT, settings_to_wire
from tests.support.scraped import Scraped
from tests.support.scripted import SINK, SOURCE

METHODS = [
    method
    for file in (participants_pb2, operators_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
SETTINGS = CheckpointSettings(interval=None, lease="1min", orphan_grace="2min")
_INTEGERS = {
    FieldDescriptor.TYPE_INT32: (-1, -(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: (-1, -(2**63), 2**63 - 1, MAX_ID + 1),
    FieldDescriptor.TYPE_DOUBLE: (-1.0, float("nan"), float("inf"), 1e300),
}
_TEXTS = {"job": "walked", "body": "{}", "shared_body": "{}", "kind": "test", "topic": "orders"}
UNBOUNDED = {"Document.version"}
"""Any number of its type that is at least 1 is a version."""

Place = tuple[str, ...]


def sample(descriptor: Descriptor) -> Any:
    """A request in which every field is given, with small numbers."""
    if descriptor.name == "CheckpointSettings":
        return settings_to_wire(CheckpointSettings())
    made: Any = message_factory.GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            raise AssertionError(f"{descriptor.name}.{field.name}: no request had a map so far")
        if descriptor.name == "OpenJobRequest" and field.name == "participants":
            made.participants.extend(map(PARTICIPANT.to_wire, (SOURCE, SINK)))
            continue
        value = _value(field)
        if field.is_repeated:
            getattr(made, field.name).append(value)
        elif field.message_type is not None:
            getattr(made, field.name).CopyFrom(value)
        else:
            setattr(made, field.name, value)
    return made


def _value(field: FieldDescriptor) -> Any:
    if field.message_type is not None:
        return sample(field.message_type)
    if field.type == FieldDescriptor.TYPE_STRING:
        return _TEXTS.get(field.name, "x")
    return False if field.type == FieldDescriptor.TYPE_BOOL else 1


def numbers(message: Any, at: Place = ()) -> Iterator[tuple[Place, Any]]:
    """The place of every number in ``message``, and its field."""
    for field, value in message.ListFields():
        here = (*at, field.name)
        if field.message_type is not None:
            yield from numbers(value[0] if field.is_repeated else value, here)
        elif field.type in _INTEGERS:
            yield here, field


def with_number(message: Any, path: Place, number: float) -> Any:
    changed = deepcopy(message)
    inner = changed
    for name in path[:-1]:
        inner = getattr(inner, name)
        inner = inner[0] if hasattr(inner, "append") else inner
    if hasattr(getattr(inner, path[-1]), "append"):
        getattr(inner, path[-1])[0] = number
    else:
        setattr(inner, path[-1], number)
    return changed


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[grpc.Channel]:
    with (
        EmbeddedCoordinator(tmp_path_factory.mktemp("walked")) as coordinator,
        connect(coordinator.address) as client,
        open_channel(coordinator.address) as channel,
    ):
        client.open_job(JobName("walked"), (SOURCE, SINK), SETTINGS, None, driver="d1")
        yield channel


def answer(channel: grpc.Channel, method: Any, request: Message) -> tuple[grpc.StatusCode, str]:
    path, data = f"/{method.containing_service.full_name}/{method.name}", request.SerializeToString()
    try:
        if method.server_streaming:
            stream: Any = channel.unary_stream(path)
            next(stream(data, timeout=60, wait_for_ready=True))
        else:
            whole: Any = channel.unary_unary(path)
            whole(data, timeout=60, wait_for_ready=True)
    except grpc.RpcError as error:
        return error.code(), error.details() or ""
    return grpc.StatusCode.OK, ""


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_every_number_of_a_request_has_bounds(walked: grpc.Channel, method: Any) -> None:
    whole = sample(method.input_type)
    code, said = answer(walked, method, whole)
    assert code is not grpc.StatusCode.INVALID_ARGUMENT, f"so no number would be to blame: {said}"
    taken = []
    for path, field in numbers(whole):
        for number in _INTEGERS[field.type]:
            code, said = answer(walked, method, with_number(whole, path, number))
            named = f"{field.containing_type.name}.{field.name}"
            if (code, number) == (grpc.StatusCode.OK, 2**31 - 1) and named in UNBOUNDED:
                continue
            if code is not grpc.StatusCode.INVALID_ARGUMENT or field.name.removesuffix("_us") not in said:
                taken.append((".".join(path), number, code, said))
    assert taken == []


def opened(client: CoordinatorClient, *jobs: str) -> list[Session]:
    return [client.open_job(JobName(job), (SOURCE, SINK), SETTINGS, None, driver=job) for job in jobs]


@pytest.mark.parametrize("far", [timedelta.min, timedelta(0), timedelta.max], ids=["back", "zero", "ahead"])
def test_a_driver_whose_durations_make_no_sense_keeps_its_lease_and_hides_nothing(
    on: Callable[..., EmbeddedCoordinator], tmp_path: Path, far: timedelta
) -> None:
    metrics = CoordinatorMetrics()
    coordinator = on(tmp_path / "state", observer=metrics)
    with connect(coordinator.address) as client, OperatorClient(coordinator.address) as people:
        a, _ = opened(client, "a", "b")
        a.report_oldest(lambda: Age(transaction="t", open_for=far, timeout=max(far, timedelta(microseconds=1))))
        a.report_progress(lambda: ReadProgress(lag=1, measured_ago=far, records_per_second=1.0, partitions=()))
        a.renew()
        assert [job.job for job in people.jobs()] == ["a", "b"]
        assert people.describe(JobName("a")).summary.oldest_transaction is not None
    found = Scraped({family.name: family for family in metrics.collect()})
    assert found.labels("onceward_job_oldest_transaction_timeout_ratio") == {"a", "b"}


def test_a_transaction_without_a_timeout_has_no_age() -> None:
    with pytest.raises(ValueError, match="return None instead of an Age"):
        Age(transaction="t", open_for=timedelta(0), timeout=timedelta(0))


def test_a_job_that_cannot_be_shown_costs_its_own_row_only(
    on: Callable[..., EmbeddedCoordinator],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    whole = JobSummaries._oldest

    def failing(summaries: JobSummaries, state: JobState, report: Report | None, now: float) -> Age | None:
        if state.durable.job == "b":
            raise OverflowError("planted")
        return whole(summaries, state, report, now)

    monkeypatch.setattr(JobSummaries, "_oldest", failing)
    metrics = CoordinatorMetrics()
    coordinator = on(tmp_path / "state", observer=metrics)
    with connect(coordinator.address) as client, OperatorClient(coordinator.address) as people:
        opened(client, "a", "b", "c")
        rows = [*people.jobs(), *people.jobs()]
    found = [Scraped({family.name: family for family in metrics.collect()}) for _ in range(2)][-1]
    details = {row.job: row.status_detail for row in rows}
    assert "unreadable" in details.pop(JobName("b"))
    assert details == {"a": "", "c": ""}
    assert {row.status for row in rows} == {JobStatus.RUNNING}
    assert found.labels("onceward_job_oldest_transaction_age_seconds") == {"a", "c"}
    assert found.labels("onceward_job_generation") == {"a", "b", "c"}
    unmeasured = {job: found.value("onceward_job_unmeasured", job_name=job) for job in "abc"}
    assert unmeasured == {"a": 0.0, "b": 1.0, "c": 0.0}
    logged = [record.getMessage() for record in caplog.records if record.exc_info]
    assert logged == ["event=row_unreadable job=b", "event=job_unmeasured job=b"], "each once"
