"""``onceward jobs``, ``onceward checkpoints``, ``onceward history``: ask a coordinator and show its answer."""

from datetime import UTC, datetime, timedelta

from onceward.coordinator.client.operators import OperatorClient
from onceward.coordinator.errors import ExitCode
from onceward.coordinator.listings import CheckpointSummary, HistoryEntry, JobSummary, JobWait
from onceward.coordinator.ops.connecting import CoordinatorLocation, job_name, operators
from onceward.coordinator.ops.losses import exit_code
from onceward.coordinator.ops.tables import as_bytes, as_seconds, as_time, print_json, print_table, table
from onceward.coordinator.protocol.status import JobStatus
from onceward.coordinator.protocol.values import CheckpointKind, CheckpointState, JobName

__all__ = ["SPARK_BATCH", "job_detail", "list_checkpoints", "list_history", "list_jobs", "show_checkpoint"]

SPARK_BATCH = "spark-batch"
"""The kind of a Structured Streaming query's positions, and of the source that has them."""


def list_jobs(place: CoordinatorLocation, *, as_json: bool) -> ExitCode:
    with operators(place) as (client, _):
        found = [job for job in client.jobs() if job.status is not JobStatus.FORGOTTEN]
    code = exit_code(sum(job.unacknowledged_losses for job in found))
    if as_json:
        print_json(found)
        return code
    shown = table("job", "status", "generation", "last checkpoint", "last completed", "at", "settled", "detail")
    for job in found:
        shown.add_row(
            job.job,
            job.status.value,
            str(job.generation),
            str(job.last_checkpoint or "-"),
            str(job.last_completed or "-"),
            as_time(job.last_completed_at),
            "yes" if job.settled else "no",
            job_detail(job),
        )
    print_table(shown, "There are no jobs.")
    return code


_USUAL = timedelta(seconds=5)
"""Waits up to this long are normal: every job always waits for something."""


def _unusual(wait: JobWait) -> bool:
    return wait.since is None or datetime.now(UTC) - wait.since >= _USUAL


def job_detail(job: JobSummary) -> str:
    """Describe everything that is not normal."""
    parts = [job.status_detail]
    if job.ending is not None:
        parts.append(f"asked to {job.ending.value}")
    if job.failures:
        parts.append(f"{job.failures} failed checkpoints in a row")
    if job.open_requests:
        requests = [f"{one.kind.value} {one.name}".strip() + f" {one.state.value}" for one in job.open_requests]
        parts.append("requests: " + ", ".join(requests))
    if job.unreadable:
        parts.append(f"its newest checkpoint cannot be read: {job.unreadable}")
    if job.orphan:
        parts.append(job.orphan)
    parts += [f"waits since {as_time(wait.since)} for {wait.what}" for wait in job.waits if _unusual(wait)]
    oldest = job.oldest_transaction
    if oldest is not None and oldest.open_for >= _USUAL:
        age, limit = oldest.open_for.total_seconds(), oldest.timeout.total_seconds()
        parts.append(f"oldest pre-committed transaction open for {age:.0f} s of {limit:.0f} s ({oldest.transaction})")
    if job.unacknowledged_losses:
        lost = f"the records of {job.unacknowledged_losses} slots were given up"
        parts.append(f"{lost}, and the loss is not acknowledged: onceward losses {job.job}")
    if job.takeover_permitted:
        parts.append("the next driver may replace the live one")
    if job.adoption_permitted is not None:
        claim = job.adoption_permitted
        what = f"store {claim.store_id} (generation {claim.generation}, through checkpoint {claim.completed})"
        parts.append(f"may adopt the claim of {what}")
    if job.restore_from:
        parts.append(f"begins next with checkpoint {job.restore_from}: {job.restore_reason}")
    return "; ".join(filter(None, parts))


def list_checkpoints(job: str, limit: int, place: CoordinatorLocation, *, as_json: bool) -> ExitCode:
    name = job_name(job)
    with operators(place) as (client, _):
        described, found = client.describe(name), client.checkpoints(name, limit)
        streaming = not as_json and any(one.kind == SPARK_BATCH for one in described.participants)
        batches = {one.checkpoint: _batch(client, name, one) for one in found} if streaming else {}
        code = exit_code(described.summary.unacknowledged_losses)
    if as_json:
        print_json(found)
        return code
    shown = table(
        "checkpoint",
        "base",
        "generation",
        "kind",
        "state",
        "triggered",
        "wait s",
        "run s",
        "decide s",
        "settle s",
        "read",
        "written",
        "bytes",
        "slots",
        "detail",
    )
    for checkpoint in found:
        shown.add_row(
            str(checkpoint.checkpoint),
            str(checkpoint.base or "-"),
            str(checkpoint.generation),
            checkpoint.kind.value,
            checkpoint.state.value,
            as_time(checkpoint.triggered_at),
            as_seconds(checkpoint.waited),
            as_seconds(checkpoint.ran),
            as_seconds(checkpoint.decided),
            as_seconds(checkpoint.settled),
            str(checkpoint.records_read),
            str(checkpoint.records_written),
            as_bytes(checkpoint.bytes_written),
            str(checkpoint.committables),
            "; ".join(filter(None, (batches.get(checkpoint.checkpoint), _checkpoint_detail(checkpoint)))),
        )
    print_table(shown, f"Job {job} has no stored checkpoints.")
    return code


def _batch(client: OperatorClient, job: JobName, checkpoint: CheckpointSummary) -> str:
    """Name Spark's batch in a checkpoint of a Structured Streaming query; empty while nothing is completed."""
    if checkpoint.state not in (CheckpointState.COMPLETED, CheckpointState.SETTLED):
        return ""
    for snapshot in client.checkpoint(job, checkpoint.checkpoint).snapshots.values():
        positions = snapshot.positions
        if positions is not None and positions.kind == SPARK_BATCH and positions.body.get("query") is not None:
            return f"batch {positions.body.get('batch')} of query {positions.body['query']}"
    return ""


def show_checkpoint(job: str, checkpoint: int, place: CoordinatorLocation) -> None:
    """Print everything about one checkpoint, including what a new job needs to continue from it."""
    with operators(place) as (client, _):
        found = client.checkpoint(job_name(job), checkpoint)
    settlements = [(one.participant, one.settlement) for one in found.settlements]
    print_json({"summary": found.summary, "snapshots": found.snapshots, "settlements": settlements})


def _checkpoint_detail(checkpoint: CheckpointSummary) -> str:
    why = checkpoint.abort_reason.value if checkpoint.abort_reason is not None else ""
    parts = [checkpoint.name, ": ".join(filter(None, (why, checkpoint.detail)))]
    if checkpoint.kind is CheckpointKind.RESTORE:
        parts.append(f"back to checkpoint {checkpoint.base}")
    if checkpoint.kind is CheckpointKind.SKIP:
        parts.append(f"from checkpoint {checkpoint.base}, past deleted input")
    if checkpoint.amendment:
        parts.append(f"lost slots were replayed ({checkpoint.amendment})")
    return "; ".join(filter(None, parts))


def list_history(job: str, limit: int, place: CoordinatorLocation, *, as_json: bool) -> ExitCode:
    name = job_name(job)
    with operators(place) as (client, _):
        generations, events = client.generations(name, limit), client.history(name, limit)
        code = exit_code(client.job(name).unacknowledged_losses)
    if as_json:
        print_json({"generations": generations, "events": events})
        return code
    shown = table("generation", "granted", "ended", "driver", "detail", title="Generations")
    for generation in generations:
        ended = as_time(generation.ended_at)
        granted = as_time(generation.granted_at)
        shown.add_row(str(generation.generation), granted, ended, generation.driver, generation.detail)
    print_table(shown, f"Job {job} has never run.")
    shown = table("at", "event", "generation", "checkpoint", "participant", "times", "detail", title="\nEvents")
    for event in events:
        shown.add_row(
            as_time(event.at),
            event.event,
            str(event.generation or "-"),
            str(event.checkpoint or "-"),
            event.participant or "-",
            str(event.count),
            _event_detail(event),
        )
    print_table(shown, f"The history of job {job} is empty.")
    return code


def _event_detail(event: HistoryEntry) -> str:
    answered = f"answered {event.verdict.value}" if event.verdict is not None else ""
    return ": ".join(filter(None, (answered, event.detail)))
