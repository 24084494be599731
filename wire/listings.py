"""The rows of listings as messages. Decoding raises MalformedError."""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from onceward.protocol.values import CheckpointId, Generation, Outcome, ParticipantName
from onceward.wire.documents import document_from_wire, document_to_wire
from onceward.wire.enums import (
    ABORT_REASON,
    CHECKPOINT_KIND,
    CHECKPOINT_STATE,
    COORDINATOR_ROLE,
    ENDING,
    JOB_STATUS,
    OUTCOME,
    VERDICT,
)
from onceward.wire.malformed import as_job, as_participant
from onceward.wire.rows import (
    Certificate,
    CheckpointDescription,
    CheckpointSummary,
    CommitTimes,
    CoordinatorDescription,
    GenerationSummary,
    HistoryEntry,
    JobDescription,
    JobProgress,
    JobSummary,
    JobWait,
    Leader,
    LossReport,
    RecordedSettlement,
    Setting,
    Standby,
)
from onceward.wire.text import text_to_wire
from onceward.wire.v1 import operators_pb2 as pb
from onceward.wire.values import (
    age_from_wire,
    age_to_wire,
    claim_from_wire,
    claim_to_wire,
    participant_from_wire,
    participant_to_wire,
    partition_lag_from_wire,
    partition_lag_to_wire,
    phases_from_wire,
    phases_to_wire,
    request_from_wire,
    request_to_wire,
    settings_from_wire,
    settings_to_wire,
    settlement_from_wire,
    settlement_to_wire,
    snapshot_from_wire,
    snapshot_to_wire,
)

__all__ = [
    "checkpoint_description_from_wire",
    "checkpoint_description_to_wire",
    "checkpoint_summary_from_wire",
    "checkpoint_summary_to_wire",
    "coordinator_description_from_wire",
    "coordinator_description_to_wire",
    "generation_summary_from_wire",
    "generation_summary_to_wire",
    "history_entry_from_wire",
    "history_entry_to_wire",
    "job_description_from_wire",
    "job_description_to_wire",
    "job_summary_from_wire",
    "job_summary_to_wire",
    "loss_report_from_wire",
    "loss_report_to_wire",
]

_MICROSECOND = timedelta(microseconds=1)


def job_summary_to_wire(value: JobSummary) -> pb.JobSummary:
    oldest = value.oldest_transaction
    return pb.JobSummary(
        job=value.job,
        status=JOB_STATUS.to_wire(value.status),  # type: ignore[arg-type]
        status_detail=text_to_wire(value.status_detail),
        generation=value.generation,
        last_checkpoint=value.last_checkpoint,
        last_completed=value.last_completed,
        last_completed_at_ms=_milliseconds(value.last_completed_at),
        settled=value.settled,
        ending=ENDING.to_wire(value.ending) if value.ending is not None else None,  # type: ignore[arg-type]
        failures=value.failures,
        failure=text_to_wire(value.failure),
        open_requests=[request_to_wire(request) for request in value.open_requests],
        unreadable=value.unreadable,
        restore_from=value.restore_from,
        restore_reason=value.restore_reason,
        unacknowledged_losses=value.unacknowledged_losses,
        orphan=text_to_wire(value.orphan),
        waits=[pb.Wait(what=text_to_wire(wait.what), since_ms=_milliseconds(wait.since)) for wait in value.waits],
        oldest_transaction=age_to_wire(oldest) if oldest is not None else None,
        takeover_permitted=value.takeover_permitted,
        adoption_permitted=claim_to_wire(value.adoption_permitted) if value.adoption_permitted is not None else None,
        progress=_progress_to_wire(value.progress) if value.progress is not None else None,
    )


def job_summary_from_wire(message: pb.JobSummary) -> JobSummary:
    oldest = message.oldest_transaction if message.HasField("oldest_transaction") else None
    return JobSummary(
        job=as_job(message.job),
        status=JOB_STATUS.from_wire(message.status),
        status_detail=message.status_detail,
        generation=Generation(message.generation),
        last_checkpoint=CheckpointId(message.last_checkpoint),
        last_completed=CheckpointId(message.last_completed),
        last_completed_at=_time(message.last_completed_at_ms),
        settled=message.settled,
        ending=ENDING.from_wire(message.ending) if message.HasField("ending") else None,
        failures=message.failures,
        failure=message.failure,
        open_requests=tuple(request_from_wire(request) for request in message.open_requests),
        unreadable=message.unreadable,
        restore_from=CheckpointId(message.restore_from),
        restore_reason=message.restore_reason,
        unacknowledged_losses=message.unacknowledged_losses,
        orphan=message.orphan,
        waits=tuple(JobWait(what=wait.what, since=_time(wait.since_ms)) for wait in message.waits),
        oldest_transaction=age_from_wire(oldest) if oldest is not None else None,
        takeover_permitted=message.takeover_permitted,
        adoption_permitted=(
            claim_from_wire(message.adoption_permitted) if message.HasField("adoption_permitted") else None
        ),
        progress=_progress_from_wire(message.progress) if message.HasField("progress") else None,
    )


def _progress_to_wire(value: JobProgress) -> pb.JobProgress:
    return pb.JobProgress(
        lag=value.lag,
        measured_at_ms=_milliseconds(value.measured_at),
        records_per_second=value.records_per_second,
        recent_lag=value.recent_lag,
        recent_records_per_second=value.recent_records_per_second,
    )


def _progress_from_wire(message: pb.JobProgress) -> JobProgress:
    return JobProgress(
        lag=message.lag if message.HasField("lag") else None,
        measured_at=_time(message.measured_at_ms),
        records_per_second=message.records_per_second,
        recent_lag=tuple(message.recent_lag),
        recent_records_per_second=tuple(message.recent_records_per_second),
    )


def job_description_to_wire(value: JobDescription) -> pb.DescribeJobResponse:
    return pb.DescribeJobResponse(
        summary=job_summary_to_wire(value.summary),
        participants=[participant_to_wire(participant) for participant in value.participants],
        settings=settings_to_wire(value.settings),
        connected=value.connected,
        unresolved=[
            pb.UnresolvedSlot(participant=name, slot=slot, outcome=OUTCOME.to_wire(outcome))  # type: ignore[arg-type]
            for name, slots in sorted(value.unresolved.items())
            for slot, outcome in sorted(slots.items())
        ],
        driven=value.driven,
        partitions=map(partition_lag_to_wire, value.partitions),
        other_partitions=value.other_partitions,
    )


def job_description_from_wire(message: pb.DescribeJobResponse) -> JobDescription:
    return JobDescription(
        summary=job_summary_from_wire(message.summary),
        participants=tuple(participant_from_wire(one) for one in message.participants),
        settings=settings_from_wire(message.settings),
        connected=message.connected,
        unresolved=_unresolved(message.unresolved),
        driven=message.driven,
        partitions=tuple(map(partition_lag_from_wire, message.partitions)),
        other_partitions=message.other_partitions,
    )


def _unresolved(slots: Iterable[pb.UnresolvedSlot]) -> dict[ParticipantName, dict[int, Outcome]]:
    found: dict[ParticipantName, dict[int, Outcome]] = {}
    for one in slots:
        found.setdefault(as_participant(one.participant), {})[one.slot] = OUTCOME.from_wire(one.outcome)
    return found


def checkpoint_summary_to_wire(value: CheckpointSummary) -> pb.CheckpointSummary:
    reason = value.abort_reason
    return pb.CheckpointSummary(
        checkpoint=value.checkpoint,
        base=value.base,
        generation=value.generation,
        kind=CHECKPOINT_KIND.to_wire(value.kind),  # type: ignore[arg-type]
        name=value.name,
        state=CHECKPOINT_STATE.to_wire(value.state),  # type: ignore[arg-type]
        abort_reason=ABORT_REASON.to_wire(reason) if reason is not None else None,  # type: ignore[arg-type]
        detail=text_to_wire(value.detail),
        triggered_at_ms=_milliseconds(value.triggered_at),
        decided_at_ms=_milliseconds(value.decided_at),
        settled_at_ms=_milliseconds(value.settled_at),
        waited_us=value.waited // _MICROSECOND,
        ran_us=_microseconds(value.ran),
        decided_us=_microseconds(value.decided),
        settled_us=_microseconds(value.settled),
        records_read=value.records_read,
        records_written=value.records_written,
        bytes_read=value.bytes_read,
        bytes_written=value.bytes_written,
        committables=value.committables,
        amendment=value.amendment,
        phases=phases_to_wire(value.phases),
    )


def checkpoint_summary_from_wire(message: pb.CheckpointSummary) -> CheckpointSummary:
    return CheckpointSummary(
        checkpoint=CheckpointId(message.checkpoint),
        base=CheckpointId(message.base),
        generation=Generation(message.generation),
        kind=CHECKPOINT_KIND.from_wire(message.kind),
        name=message.name,
        state=CHECKPOINT_STATE.from_wire(message.state),
        abort_reason=ABORT_REASON.from_wire(message.abort_reason) if message.HasField("abort_reason") else None,
        detail=message.detail,
        triggered_at=_time(message.triggered_at_ms),
        decided_at=_time(message.decided_at_ms),
        settled_at=_time(message.settled_at_ms),
        waited=message.waited_us * _MICROSECOND,
        ran=message.ran_us * _MICROSECOND if message.HasField("ran_us") else None,
        decided=message.decided_us * _MICROSECOND if message.HasField("decided_us") else None,
        settled=message.settled_us * _MICROSECOND if message.HasField("settled_us") else None,
        records_read=message.records_read,
        records_written=message.records_written,
        bytes_read=message.bytes_read,
        bytes_written=message.bytes_written,
        committables=message.committables,
        amendment=message.amendment,
        phases=phases_from_wire(message.phases),
    )


def checkpoint_description_to_wire(value: CheckpointDescription) -> pb.DescribeCheckpointResponse:
    return pb.DescribeCheckpointResponse(
        summary=checkpoint_summary_to_wire(value.summary),
        snapshots={name: snapshot_to_wire(snapshot) for name, snapshot in value.snapshots.items()},
        settlements=[
            pb.RecordedSettlement(
                participant=one.participant,
                settlement=settlement_to_wire(one.settlement),
                recorded_at_ms=_milliseconds(one.recorded_at),
            )
            for one in value.settlements
        ],
    )


def checkpoint_description_from_wire(message: pb.DescribeCheckpointResponse) -> CheckpointDescription:
    return CheckpointDescription(
        summary=checkpoint_summary_from_wire(message.summary),
        snapshots={as_participant(name): snapshot_from_wire(one) for name, one in message.snapshots.items()},
        settlements=tuple(
            RecordedSettlement(
                participant=as_participant(one.participant),
                settlement=settlement_from_wire(one.settlement),
                recorded_at=_time(one.recorded_at_ms),
            )
            for one in message.settlements
        ),
    )


def loss_report_to_wire(value: LossReport) -> pb.LossReport:
    return pb.LossReport(
        job=value.job,
        checkpoint=value.checkpoint,
        participant=value.participant,
        settlement=settlement_to_wire(value.settlement),
        document=document_to_wire(value.document),
        reason=text_to_wire(value.reason),
        recorded_at_ms=_milliseconds(value.recorded_at),
        acknowledged_at_ms=_milliseconds(value.acknowledged_at),
        acknowledgement=text_to_wire(value.acknowledgement),
    )


def loss_report_from_wire(message: pb.LossReport) -> LossReport:
    return LossReport(
        job=as_job(message.job),
        checkpoint=CheckpointId(message.checkpoint),
        participant=as_participant(message.participant),
        settlement=settlement_from_wire(message.settlement),
        document=document_from_wire(message.document),
        reason=message.reason,
        recorded_at=_time(message.recorded_at_ms),
        acknowledged_at=_time(message.acknowledged_at_ms),
        acknowledgement=message.acknowledgement,
    )


def generation_summary_to_wire(value: GenerationSummary) -> pb.GenerationSummary:
    return pb.GenerationSummary(
        generation=value.generation,
        driver=value.driver,
        granted_at_ms=_milliseconds(value.granted_at),
        ended_at_ms=_milliseconds(value.ended_at),
        detail=text_to_wire(value.detail),
    )


def generation_summary_from_wire(message: pb.GenerationSummary) -> GenerationSummary:
    return GenerationSummary(
        generation=Generation(message.generation),
        driver=message.driver,
        granted_at=_time(message.granted_at_ms),
        ended_at=_time(message.ended_at_ms),
        detail=message.detail,
    )


def history_entry_to_wire(value: HistoryEntry) -> pb.HistoryEntry:
    verdict = value.verdict
    return pb.HistoryEntry(
        at_ms=_milliseconds(value.at),
        event=value.event,
        verdict=VERDICT.to_wire(verdict) if verdict is not None else None,  # type: ignore[arg-type]
        generation=value.generation,
        checkpoint=value.checkpoint,
        participant=value.participant,
        detail=text_to_wire(value.detail),
        count=value.count,
    )


def history_entry_from_wire(message: pb.HistoryEntry) -> HistoryEntry:
    return HistoryEntry(
        at=_time(message.at_ms),
        event=message.event,
        verdict=VERDICT.from_wire(message.verdict) if message.HasField("verdict") else None,
        generation=Generation(message.generation),
        checkpoint=CheckpointId(message.checkpoint),
        participant=message.participant,
        detail=message.detail,
        count=message.count,
    )


def coordinator_description_to_wire(value: CoordinatorDescription) -> pb.DescribeCoordinatorResponse:
    return pb.DescribeCoordinatorResponse(
        role=COORDINATOR_ROLE.to_wire(value.role),  # type: ignore[arg-type]
        detail=text_to_wire(value.detail),
        leader=_leader_to_wire(value.leader) if value.leader is not None else None,
        standbys=_standbys_to_wire(value.standbys) if value.standbys is not None else None,
        store=value.store,
        shared=value.shared,
        store_id=value.store_id,
        commits=_commits_to_wire(value.commits) if value.commits is not None else None,
        calls=value.calls,
        most_calls=value.most_calls,
        connections=value.connections,
        drivers=value.drivers,
        jobs=value.jobs,
        certificates=[
            pb.Certificate(
                option=one.option,
                expires_at_ms=_milliseconds(one.expires_at) if one.expires_at is not None else None,
            )
            for one in value.certificates
        ],
        settings=[pb.Setting(name=one.name, value=text_to_wire(one.value)) for one in value.settings],
        version=value.version,
    )


def coordinator_description_from_wire(message: pb.DescribeCoordinatorResponse) -> CoordinatorDescription:
    standbys = message.standbys.standbys if message.HasField("standbys") else None
    return CoordinatorDescription(
        role=COORDINATOR_ROLE.from_wire(message.role),
        detail=message.detail,
        leader=_leader_from_wire(message.leader) if message.HasField("leader") else None,
        standbys=tuple(map(_standby_from_wire, standbys)) if standbys is not None else None,
        store=message.store,
        shared=message.shared,
        store_id=message.store_id,
        commits=_commits_from_wire(message.commits) if message.HasField("commits") else None,
        calls=message.calls,
        most_calls=message.most_calls,
        connections=message.connections if message.HasField("connections") else None,
        drivers=message.drivers if message.HasField("drivers") else None,
        jobs=message.jobs if message.HasField("jobs") else None,
        certificates=tuple(
            Certificate(
                option=one.option, expires_at=_time(one.expires_at_ms) if one.HasField("expires_at_ms") else None
            )
            for one in message.certificates
        ),
        settings=tuple(Setting(name=one.name, value=one.value) for one in message.settings),
        version=message.version,
    )


def _leader_to_wire(value: Leader) -> pb.Leader:
    return pb.Leader(
        address=text_to_wire(value.address),
        term=value.term,
        since_ms=_milliseconds(value.since),
        web=text_to_wire(value.web),
    )


def _leader_from_wire(message: pb.Leader) -> Leader:
    return Leader(address=message.address, term=message.term, since=_time(message.since_ms), web=message.web)


def _standbys_to_wire(standbys: Iterable[Standby]) -> pb.Standbys:
    return pb.Standbys(
        standbys=[
            pb.Standby(name=text_to_wire(one.name), address=one.address, since_ms=_milliseconds(one.since))
            for one in standbys
        ]
    )


def _standby_from_wire(message: pb.Standby) -> Standby:
    return Standby(name=message.name, address=message.address, since=_time(message.since_ms))


def _commits_to_wire(value: CommitTimes) -> pb.CommitTimes:
    median, p99, worst = ((one or timedelta()) // _MICROSECOND for one in (value.median, value.p99, value.worst))
    return pb.CommitTimes(
        commits=value.commits,
        median_us=median,
        p99_us=p99,
        worst_us=worst,
        window_us=value.window // _MICROSECOND,
    )


def _commits_from_wire(message: pb.CommitTimes) -> CommitTimes:
    times = (message.median_us, message.p99_us, message.worst_us)
    median, p99, worst = (one * _MICROSECOND if message.commits else None for one in times)
    return CommitTimes(
        commits=message.commits, median=median, p99=p99, worst=worst, window=message.window_us * _MICROSECOND
    )


def _milliseconds(time: datetime | None) -> int:
    return round(time.timestamp() * 1000) if time is not None else 0


def _time(milliseconds: int) -> datetime | None:
    return datetime.fromtimestamp(milliseconds / 1000, UTC) if milliseconds else None


def _microseconds(duration: timedelta | None) -> int | None:
    return duration // _MICROSECOND if duration is not None else None
