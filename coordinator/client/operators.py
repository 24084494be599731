"""What people ask a coordinator, as plain values. Synchronous."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Self

from coordinator.client.calls import Caller, open_channel
from coordinator.protocol.answers import Answer
from coordinator.protocol.facts import AbortReason, JobStatus
from coordinator.protocol.settings import Duration, as_duration
from coordinator.protocol.values import JobName, ParticipantName, Settlement, Snapshot
from coordinator.v1 import operators_pb2 as pb
from coordinator.v1.operators_pb2_grpc import OperatorServiceStub
from coordinator.wire.answers import answer_from_wire
from coordinator.wire.enums import ABORT_REASON, JOB_STATUS
from coordinator.wire.malformed import MalformedError, as_participant
from coordinator.wire.values import settlement_from_wire, snapshot_from_wire

__all__ = ["CheckpointDescription", "CheckpointState", "CheckpointSummary", "JobSummary", "OperatorClient"]


class CheckpointState(StrEnum):
    TRIGGERED = "triggered"
    COMPLETED = "completed"
    """Decided; its commits are not all proved."""
    SETTLED = "settled"
    """Completed, and every commit is proved."""
    ABORTED = "aborted"


_STATES: Mapping[int, CheckpointState] = {
    pb.CHECKPOINT_STATE_TRIGGERED: CheckpointState.TRIGGERED,
    pb.CHECKPOINT_STATE_COMPLETED: CheckpointState.COMPLETED,
    pb.CHECKPOINT_STATE_SETTLED: CheckpointState.SETTLED,
    pb.CHECKPOINT_STATE_ABORTED: CheckpointState.ABORTED,
}


@dataclass(frozen=True, kw_only=True)
class JobSummary:
    """Checkpoints are 0, times None, where there is none."""

    job: str
    status: JobStatus
    status_detail: str
    generation: int
    last_checkpoint: int
    last_completed: int
    last_completed_at: datetime | None
    settled: bool
    stop_requested: bool


@dataclass(frozen=True, kw_only=True)
class CheckpointSummary:
    checkpoint: int
    base: int
    generation: int
    state: CheckpointState
    abort_reason: AbortReason | None
    detail: str
    triggered_at: datetime | None
    decided_at: datetime | None
    settled_at: datetime | None
    records_read: int
    records_written: int
    committables: int


@dataclass(frozen=True, kw_only=True)
class CheckpointDescription:
    summary: CheckpointSummary
    snapshots: Mapping[ParticipantName, Snapshot]
    settlements: tuple[tuple[ParticipantName, Settlement], ...]
    """Outcomes that halted the job."""


class OperatorClient:
    """A person's connection. Calls raise CoordinatorLostError, and RefusedError for an unknown job.

    :param patience: how long an unreachable coordinator is asked again.
    """

    def __init__(self, address: str, *, patience: Duration = "2s") -> None:
        channel = open_channel(address)
        seconds = as_duration(patience).total_seconds()
        self._caller = Caller(channel, address, patience=seconds, broken=lambda: None)
        self._stub = OperatorServiceStub(channel)

    def jobs(self) -> list[JobSummary]:
        """All jobs, by name."""
        return self._caller.call(
            self._stub.ListJobs, pb.ListJobsRequest(), lambda r: [_job(job) for job in r.jobs], doing="listing jobs"
        )

    def job(self, job: JobName) -> JobSummary:
        request = pb.DescribeJobRequest(job=job)
        doing = f"describing job {job}"
        return self._caller.call(self._stub.DescribeJob, request, lambda r: _job(r.summary), doing=doing)

    def connected(self, job: JobName) -> bool:
        """True while the job's driver has its instruction stream."""
        request = pb.DescribeJobRequest(job=job)
        doing = f"describing job {job}"
        return self._caller.call(self._stub.DescribeJob, request, lambda r: bool(r.connected), doing=doing)

    def checkpoints(self, job: JobName, limit: int = 20) -> list[CheckpointSummary]:
        """Newest first."""
        return self._caller.call(
            self._stub.ListCheckpoints,
            pb.ListCheckpointsRequest(job=job, limit=limit),
            lambda r: [_checkpoint(checkpoint) for checkpoint in r.checkpoints],
            doing=f"listing checkpoints of job {job}",
        )

    def checkpoint(self, job: JobName, checkpoint: int) -> CheckpointDescription:
        """Everything stored about one checkpoint."""
        request = pb.DescribeCheckpointRequest(job=job, checkpoint=checkpoint)
        doing = f"describing checkpoint {checkpoint} of job {job}"
        return self._caller.call(self._stub.DescribeCheckpoint, request, _description, doing=doing)

    def stop(self, job: JobName) -> Answer:
        """Ask the job's driver to leave after settling."""
        request = pb.StopJobRequest(job=job)
        doing = f"stopping job {job}"
        return self._caller.call(self._stub.StopJob, request, lambda r: answer_from_wire(r.answer), doing=doing)

    def close(self) -> None:
        self._caller.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _job(message: pb.JobSummary) -> JobSummary:
    return JobSummary(
        job=message.job,
        status=JOB_STATUS.from_wire(message.status),
        status_detail=message.status_detail,
        generation=message.generation,
        last_checkpoint=message.last_checkpoint,
        last_completed=message.last_completed,
        last_completed_at=_time(message.last_completed_at_ms),
        settled=message.settled,
        stop_requested=message.stop_requested,
    )


def _checkpoint(message: pb.CheckpointSummary) -> CheckpointSummary:
    state = _STATES.get(message.state)
    if state is None:
        raise MalformedError(f"CheckpointState: has the unknown number {message.state}")
    return CheckpointSummary(
        checkpoint=message.checkpoint,
        base=message.base,
        generation=message.generation,
        state=state,
        abort_reason=ABORT_REASON.from_wire(message.abort_reason) if message.HasField("abort_reason") else None,
        detail=message.detail,
        triggered_at=_time(message.triggered_at_ms),
        decided_at=_time(message.decided_at_ms),
        settled_at=_time(message.settled_at_ms),
        records_read=message.records_read,
        records_written=message.records_written,
        committables=message.committables,
    )


def _description(message: pb.DescribeCheckpointResponse) -> CheckpointDescription:
    return CheckpointDescription(
        summary=_checkpoint(message.summary),
        snapshots={as_participant(name): snapshot_from_wire(one) for name, one in message.snapshots.items()},
        settlements=tuple(
            (as_participant(one.participant), settlement_from_wire(one.settlement)) for one in message.settlements
        ),
    )


def _time(milliseconds: int) -> datetime | None:
    return datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds else None
