"""Converts stored records to the messages of listings."""

from datetime import datetime

from onceward.coordinator.protocol.durable import Durable
from onceward.coordinator.protocol.values import NO_CHECKPOINT
from onceward.coordinator.store.records import (
    CheckpointDetails,
    CheckpointRecord,
    GenerationRecord,
    HistoryRecord,
    JobRecord,
    LossRecord,
)
from onceward.coordinator.v1 import operators_pb2 as pb
from onceward.coordinator.wire.documents import document_to_wire
from onceward.coordinator.wire.enums import (
    ABORT_REASON,
    CHECKPOINT_KIND,
    CHECKPOINT_STATE,
    ENDING,
    JOB_STATUS,
    OUTCOME,
    VERDICT,
)
from onceward.coordinator.wire.limits import MAX_TEXT
from onceward.coordinator.wire.people import request_to_wire
from onceward.coordinator.wire.values import settlement_to_wire, snapshot_to_wire

__all__ = [
    "checkpoint_details",
    "checkpoint_summary",
    "generation_summary",
    "history_entry",
    "job_summary",
    "loss_report",
    "unresolved_slots",
]


def job_summary(durable: Durable, record: JobRecord) -> pb.JobSummary:
    """The summary of a job. ``record`` belongs to the same job; it has the newest completed checkpoint even if that
    cannot be read."""
    ending, restore = durable.ending, durable.restore
    return pb.JobSummary(
        job=durable.job,
        status=JOB_STATUS.to_wire(durable.status),  # type: ignore[arg-type]
        status_detail=durable.status_detail[:MAX_TEXT],
        generation=durable.generation,
        last_checkpoint=durable.last_id,
        last_completed=record.completed or NO_CHECKPOINT,
        last_completed_at_ms=_milliseconds(record.completed_at),
        settled=durable.settled,
        ending=ENDING.to_wire(ending) if ending is not None else None,  # type: ignore[arg-type]
        failures=durable.failures,
        open_requests=[request_to_wire(request) for request in durable.open_requests],
        unreadable=durable.unreadable,
        restore_from=restore.source.id if restore is not None else 0,
        restore_reason=restore.reason if restore is not None else "",
        unacknowledged_losses=sum(len(loss.slots) for loss in durable.losses),
    )


def unresolved_slots(durable: Durable) -> list[pb.UnresolvedSlot]:
    return [
        pb.UnresolvedSlot(participant=name, slot=slot, outcome=OUTCOME.to_wire(outcome))  # type: ignore[arg-type]
        for name, slots in sorted(durable.unresolved.items())
        for slot, outcome in sorted(slots.items())
    ]


def checkpoint_summary(record: CheckpointRecord) -> pb.CheckpointSummary:
    reason = record.abort_reason
    return pb.CheckpointSummary(
        checkpoint=record.id,
        base=record.base,
        generation=record.generation,
        kind=CHECKPOINT_KIND.to_wire(record.kind),  # type: ignore[arg-type]
        name=record.name,
        state=CHECKPOINT_STATE.to_wire(record.state),  # type: ignore[arg-type]
        abort_reason=ABORT_REASON.to_wire(reason) if reason is not None else None,  # type: ignore[arg-type]
        detail=record.detail[:MAX_TEXT],
        triggered_at_ms=_milliseconds(record.triggered_at),
        decided_at_ms=_milliseconds(record.decided_at),
        settled_at_ms=_milliseconds(record.settled_at),
        waited_us=_microseconds(record.waited) or 0,
        ran_us=_microseconds(record.ran),
        decided_us=_microseconds(record.decided),
        settled_us=_microseconds(record.settled),
        records_read=record.records_read,
        records_written=record.records_written,
        bytes_read=record.bytes_read,
        bytes_written=record.bytes_written,
        committables=record.committables,
        amendment=record.amendment,
    )


def checkpoint_details(details: CheckpointDetails) -> pb.DescribeCheckpointResponse:
    return pb.DescribeCheckpointResponse(
        summary=checkpoint_summary(details.record),
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


def loss_report(record: LossRecord) -> pb.LossReport:
    return pb.LossReport(
        job=record.job,
        checkpoint=record.checkpoint,
        participant=record.participant,
        settlement=settlement_to_wire(record.settlement),
        document=document_to_wire(record.document),
        reason=record.reason[:MAX_TEXT],
        recorded_at_ms=_milliseconds(record.recorded_at),
        acknowledged_at_ms=_milliseconds(record.acknowledged_at),
        acknowledgement=record.acknowledgement[:MAX_TEXT],
    )


def generation_summary(record: GenerationRecord) -> pb.GenerationSummary:
    return pb.GenerationSummary(
        generation=record.generation,
        driver=record.driver,
        granted_at_ms=_milliseconds(record.granted_at),
        ended_at_ms=_milliseconds(record.ended_at),
        detail=record.detail[:MAX_TEXT],
    )


def history_entry(record: HistoryRecord) -> pb.HistoryEntry:
    verdict = record.verdict
    return pb.HistoryEntry(
        at_ms=_milliseconds(record.at),
        event=record.event,
        verdict=VERDICT.to_wire(verdict) if verdict is not None else None,  # type: ignore[arg-type]
        generation=record.generation,
        checkpoint=record.checkpoint,
        participant=record.participant,
        detail=record.detail[:MAX_TEXT],
        count=record.count,
    )


def _milliseconds(time: datetime | None) -> int:
    return round(time.timestamp() * 1000) if time is not None else 0


def _microseconds(seconds: float | None) -> int | None:
    return round(seconds * 1e6) if seconds is not None else None
