"""``onceward jobs``, ``onceward checkpoints``, ``onceward history``: ask a coordinator and show its answer."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from onceward.client.operators import OperatorClient
from onceward.common.errors import ExitCode
from onceward.common.readable import size
from onceward.connectors.letter_counts import letters_in
from onceward.connectors.letters import DEAD_LETTERS
from onceward.operate.connecting import CoordinatorLocation, job_name, operators
from onceward.operate.losses import exit_code, exit_code_of
from onceward.operate.options import View
from onceward.operate.tables import Column, Listing, Times, as_duration, print_json, status
from onceward.operate.views import Answer, show
from onceward.protocol.status import JobStatus
from onceward.protocol.values import SPARK_BATCH, CheckpointKind, CheckpointState, JobName, Participant, Role
from onceward.wire.rows import CheckpointSummary, HistoryEntry, JobSummary, JobWait, as_fields

__all__ = [
    "describe_wait",
    "job_detail",
    "list_checkpoints",
    "list_history",
    "list_jobs",
    "show_checkpoint",
    "unusual",
]


def list_jobs(place: CoordinatorLocation, view: View) -> ExitCode:
    return show(place, view, _jobs)


def _jobs(client: OperatorClient) -> Answer:
    found = [job for job in client.jobs() if job.status is not JobStatus.FORGOTTEN]

    def listings(times: Times) -> list[Listing]:
        shown = Listing(
            "job",
            "status",
            Column(name="generation", spare=1),
            "last completed",
            "completed",
            Column(name="settled", spare=2),
            Column(name="last checkpoint", spare=3),
            Column(name="detail", text=True),
            if_empty="There are no jobs.",
        )
        for job in found:
            shown.add(
                job.job,
                status(job.status.value),
                str(job.generation),
                str(job.last_completed or "-"),
                times.of(job.last_completed_at),
                "yes" if job.settled else "no",
                str(job.last_checkpoint or "-"),
                job_detail(job, times),
            )
        return [shown]

    return Answer(values=found, listings=listings, code=exit_code_of(found))


_USUAL = timedelta(seconds=5)
"""Waits up to this long are normal: every job always waits for something."""


def unusual(wait: JobWait, now: datetime) -> bool:
    return wait.since is None or now - wait.since >= _USUAL


def job_detail(job: JobSummary, times: Times) -> str:
    """Describe everything that is not normal."""
    parts = [job.status_detail]
    if job.ending is not None:
        parts.append(f"asked to {job.ending.value}")
    parts.append(job.failing)
    if job.open_requests:
        requests = [f"{one.kind.value} {one.name}".strip() + f" {one.state.value}" for one in job.open_requests]
        parts.append("requests: " + ", ".join(requests))
    if job.unreadable:
        parts.append(f"its newest checkpoint cannot be read: {job.unreadable}")
    if job.orphan:
        parts.append(job.orphan)
    parts += [describe_wait(wait, times) for wait in job.waits if unusual(wait, times.now)]
    oldest = job.oldest_transaction
    if oldest is not None and oldest.open_for >= _USUAL:
        age, limit = as_duration(oldest.open_for), as_duration(oldest.timeout)
        parts.append(f"oldest pre-committed transaction open for {age} of {limit} ({oldest.transaction})")
    if job.unacknowledged_losses:
        lost = f"the records of {job.unacknowledged_losses} slots were given up"
        parts.append(f"{lost}, and the loss is not acknowledged: onceward losses {job.job}")
    if job.takeover_permitted:
        parts.append("the next driver may replace the live one")
    if job.adoption_permitted is not None:
        claim = job.adoption_permitted
        what = f"store {claim.store_id} (generation {claim.generation}, through checkpoint {claim.completed})"
        parts.append(f"may adopt the claim of {what}")
    for output in job.gone_outputs:
        close = f"onceward close {job.job} {output.name} --reason 'NAME: REASON' --systems FILE"
        parts.append(f"output {output.name} is gone and not closed: {close}")
    if job.restore_from:
        parts.append(f"begins next with checkpoint {job.restore_from}: {job.restore_reason}")
    return "; ".join(filter(None, parts))


def describe_wait(wait: JobWait, times: Times) -> str:
    return f"waits {times.since(wait.since)} for {wait.what}" if wait.since is not None else f"waits for {wait.what}"


def list_checkpoints(job: str, limit: int, place: CoordinatorLocation, view: View) -> ExitCode:
    name = job_name(job)
    return show(place, view, lambda client: _checkpoints(client, name, limit, view))


def _checkpoints(client: OperatorClient, job: JobName, limit: int, view: View) -> Answer:
    described = client.describe(job)
    outputs = [one for one in described.participants if one.role is Role.SINK]
    counts_letters = any(one.name == DEAD_LETTERS for one in outputs)
    found = client.checkpoints(job, limit, kept_by=DEAD_LETTERS if counts_letters else None)
    letters = {one.checkpoint: letters_in(one.kept) for one in found}
    streaming = not view.as_json and any(one.kind == SPARK_BATCH for one in described.participants)
    batches = {one.checkpoint: _batch(client, job, one) for one in found} if streaming else {}

    def listings(times: Times) -> list[Listing]:
        shown = Listing(
            "checkpoint",
            Column(name="kind", spare=1),
            "state",
            "began",
            Column(name="late by", spare=7),
            Column(name="ran for", spare=4),
            Column(name="longest phase", spare=5),
            Column(name="then waited", spare=8),
            Column(name="committed in", spare=3),
            "records read",
            "records written",
            *(["dead letters"] if counts_letters else []),
            Column(name="size", spare=2),
            Column(name="transactions", spare=6),
            Column(name="continues", spare=9),
            Column(name="generation", spare=10),
            Column(name="detail", text=True),
            title="Checkpoints" if len(outputs) > 1 else "",
            if_empty=f"Job {job} has no stored checkpoints.",
        )
        for checkpoint in found:
            shown.add(
                str(checkpoint.checkpoint),
                checkpoint.kind.value,
                status(checkpoint.state.value),
                times.of(checkpoint.triggered_at),
                as_duration(checkpoint.waited),
                as_duration(checkpoint.ran),
                _longest_phase(checkpoint),
                as_duration(checkpoint.decided),
                as_duration(checkpoint.settled),
                "-" if streaming else f"{checkpoint.records_read:,}",  # Spark reads them, and does not say how many
                f"{checkpoint.records_written:,}",
                *([_letters(letters[checkpoint.checkpoint])] if counts_letters else []),
                size(checkpoint.bytes_written),
                str(checkpoint.committables),
                str(checkpoint.base or "-"),
                str(checkpoint.generation),
                "; ".join(filter(None, (batches.get(checkpoint.checkpoint), _checkpoint_detail(checkpoint)))),
            )
        return [_passes(outputs), shown] if len(outputs) > 1 else [shown]

    code = exit_code(described.summary.unacknowledged_losses)
    of_the_job = [{"name": one.name, "place": one.place, "branch": one.branch} for one in outputs]
    values = [{**as_fields(one), "dead_letters": letters[one.checkpoint], "outputs": of_the_job} for one in found]
    for one in values:
        del one["kept"]
    return Answer(values=values, listings=listings, code=code)


def _letters(of_each_class: Mapping[str, int] | None) -> str:
    return "-" if of_each_class is None else f"{sum(of_each_class.values()):,}"


_MADE_IN = {False: "the shared pass", True: "a branch, which reads the input itself", None: "-"}


def _passes(outputs: Sequence[Participant]) -> Listing:
    """Which outputs share a pass over the input, in the job's newest generation."""
    shown = Listing("output", "made in", Column(name="writes to", text=True), title="Outputs")
    for one in outputs:
        shown.add(one.name, _MADE_IN[one.branch], one.place or "-")
    return shown


def _longest_phase(checkpoint: CheckpointSummary) -> str:
    if not checkpoint.phases:
        return "-"
    phase, took = max(checkpoint.phases.items(), key=lambda one: one[1])
    return f"{phase.value} {as_duration(took)}"


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


def list_history(job: str, limit: int, place: CoordinatorLocation, view: View) -> ExitCode:
    name = job_name(job)
    return show(place, view, lambda client: _history(client, name, limit))


def _history(client: OperatorClient, job: JobName, limit: int) -> Answer:
    generations, events = client.generations(job, limit), client.history(job, limit)
    code = exit_code(client.job(job).unacknowledged_losses)

    def listings(times: Times) -> list[Listing]:
        runs = Listing(
            "generation",
            "began",
            "ended",
            Column(name="driver", spare=1),
            Column(name="detail", text=True),
            title="Generations",
            if_empty=f"Job {job} has never run.",
        )
        for one in generations:
            began, ended = times.of(one.granted_at), times.of(one.ended_at)
            runs.add(str(one.generation), began, ended, one.driver, one.detail)
        happened = Listing(
            "when",
            "event",
            Column(name="generation", spare=1),
            "checkpoint",
            Column(name="participant", spare=2),
            Column(name="times", spare=3),
            Column(name="detail", text=True),
            title="Events",
            if_empty=f"The history of job {job} is empty.",
        )
        for event in events:
            happened.add(
                times.of(event.at),
                event.event,
                str(event.generation or "-"),
                str(event.checkpoint or "-"),
                event.participant or "-",
                str(event.count),
                _event_detail(event),
            )
        return [runs, happened]

    return Answer(values={"generations": generations, "events": events}, listings=listings, code=code)


def _event_detail(event: HistoryEntry) -> str:
    answered = f"answered {event.verdict.value}" if event.verdict is not None else ""
    return ": ".join(filter(None, (answered, event.detail)))
