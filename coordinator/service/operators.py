"""The operators' service: listings and requests of people."""

from datetime import datetime

import grpc

from coordinator.protocol.values import NO_CHECKPOINT, JobName
from coordinator.service.engine import Engine, UnknownJobError
from coordinator.service.methods import Function, service_handler
from coordinator.service.watchers import Watchers
from coordinator.store.records import CheckpointRecord, CheckpointState, JobRecord
from coordinator.v1 import operators_pb2 as pb
from coordinator.wire import requests
from coordinator.wire.answers import answer_to_wire
from coordinator.wire.enums import ABORT_REASON, JOB_STATUS
from coordinator.wire.limits import MAX_LISTED
from coordinator.wire.malformed import MalformedError, as_checkpoint, as_job
from coordinator.wire.values import participant_to_wire, settings_to_wire, settlement_to_wire, snapshot_to_wire

__all__ = ["operator_service"]

_LISTED = 20


def operator_service(engine: Engine, watchers: Watchers) -> grpc.GenericRpcHandler:
    """Everything that a person's tool can call."""

    def known(job: str) -> JobName:
        name = as_job(job)
        engine.state(name)
        return name

    def list_jobs(_request: pb.ListJobsRequest) -> pb.ListJobsResponse:
        records = engine.read(lambda store: store.jobs())
        return pb.ListJobsResponse(jobs=[_job(record) for record in records], store_id=engine.store_id)

    def describe_job(request: pb.DescribeJobRequest) -> pb.DescribeJobResponse:
        job = known(request.job)
        durable = engine.state(job).durable
        record = next(record for record in engine.read(lambda store: store.jobs()) if record.job == job)
        return pb.DescribeJobResponse(
            summary=_job(record),
            participants=[participant_to_wire(participant) for participant in durable.participants],
            settings=settings_to_wire(durable.settings),
            connected=watchers.connected(job),
        )

    def list_checkpoints(request: pb.ListCheckpointsRequest) -> pb.ListCheckpointsResponse:
        if not 0 <= request.limit <= MAX_LISTED:
            raise MalformedError(f"limit: {request.limit} is not within 1 and {MAX_LISTED}")
        job = known(request.job)
        records = engine.read(lambda store: store.checkpoints(job, request.limit or _LISTED))
        return pb.ListCheckpointsResponse(checkpoints=[_checkpoint(record) for record in records])

    def describe_checkpoint(request: pb.DescribeCheckpointRequest) -> pb.DescribeCheckpointResponse:
        job, checkpoint = known(request.job), as_checkpoint(request.checkpoint)
        details = engine.read(lambda store: store.checkpoint(job, checkpoint))
        if details is None:
            raise UnknownJobError(f"job {job} has no stored checkpoint {checkpoint}")
        return pb.DescribeCheckpointResponse(
            summary=_checkpoint(details.record),
            snapshots={name: snapshot_to_wire(snapshot) for name, snapshot in details.snapshots.items()},
            settlements=[
                pb.RecordedSettlement(
                    participant=recorded.participant,
                    settlement=settlement_to_wire(recorded.settlement),
                    recorded_at_ms=_milliseconds(recorded.recorded_at),
                )
                for recorded in details.settlements
            ],
        )

    def stop_job(request: pb.StopJobRequest) -> pb.StopJobResponse:
        answer = engine.handle(as_job(request.job), requests.stop_job(request, engine.clock()))
        return pb.StopJobResponse(answer=answer_to_wire(answer))

    functions: dict[str, Function] = {
        "list_jobs": list_jobs,
        "describe_job": describe_job,
        "list_checkpoints": list_checkpoints,
        "describe_checkpoint": describe_checkpoint,
        "stop_job": stop_job,
    }
    return service_handler(pb.DESCRIPTOR.services_by_name["OperatorService"], functions, {})


def _job(record: JobRecord) -> pb.JobSummary:
    return pb.JobSummary(
        job=record.job,
        status=JOB_STATUS.to_wire(record.status),  # type: ignore[arg-type]
        status_detail=record.status_detail,
        generation=record.generation,
        last_checkpoint=record.last_id,
        last_completed=record.completed or NO_CHECKPOINT,
        last_completed_at_ms=_milliseconds(record.completed_at),
        settled=record.settled,
        stop_requested=record.stop_requested,
    )


_STATES = {
    CheckpointState.TRIGGERED: pb.CHECKPOINT_STATE_TRIGGERED,
    CheckpointState.COMPLETED: pb.CHECKPOINT_STATE_COMPLETED,
    CheckpointState.SETTLED: pb.CHECKPOINT_STATE_SETTLED,
    CheckpointState.ABORTED: pb.CHECKPOINT_STATE_ABORTED,
}


def _checkpoint(record: CheckpointRecord) -> pb.CheckpointSummary:
    reason = record.abort_reason
    return pb.CheckpointSummary(
        checkpoint=record.id,
        base=record.base,
        generation=record.generation,
        state=_STATES[record.state],
        abort_reason=ABORT_REASON.to_wire(reason) if reason is not None else None,  # type: ignore[arg-type]
        detail=record.detail,
        triggered_at_ms=_milliseconds(record.triggered_at),
        decided_at_ms=_milliseconds(record.decided_at),
        settled_at_ms=_milliseconds(record.settled_at),
        records_read=record.records_read,
        records_written=record.records_written,
        committables=record.committables,
    )


def _milliseconds(time: datetime | None) -> int:
    return round(time.timestamp() * 1000) if time is not None else 0
