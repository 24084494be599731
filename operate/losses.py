"""``onceward losses``: list records that were given up, until a person has acknowledged the loss."""

from collections.abc import Sequence

from onceward.client.operators import MAX_LISTED, OperatorClient
from onceward.common.errors import ConfigurationError, ExitCode, RefusedError
from onceward.operate.connecting import CoordinatorLocation, job_name, operators
from onceward.operate.options import View
from onceward.operate.prompts import print_result
from onceward.operate.tables import Column, Listing, Times
from onceward.operate.views import Answer, show
from onceward.protocol.answers import Verdict
from onceward.protocol.status import JobStatus
from onceward.protocol.values import JobName, ParticipantName
from onceward.wire.rows import JobSummary, LossReport

__all__ = ["acknowledge_losses", "exit_code", "exit_code_of", "list_losses"]

_ALL = "all"


def exit_code(unacknowledged: int) -> ExitCode:
    """Return the exit code of a listing: a caller that checks only the code must notice an unacknowledged loss."""
    return ExitCode.LOSSES if unacknowledged else ExitCode.FINISHED


def exit_code_of(jobs: Sequence[JobSummary]) -> ExitCode:
    """Return the exit code of a listing of jobs: a caller that checks only the code must notice a halted one, too."""
    if any(job.status is JobStatus.HALTED for job in jobs):
        return ExitCode.HALTED
    return exit_code(sum(job.unacknowledged_losses for job in jobs))


def list_losses(job: str | None, limit: int, place: CoordinatorLocation, view: View, *, acknowledged: bool) -> ExitCode:
    """List losses of one job or of all, newest first; with ``acknowledged`` also the acknowledged ones."""
    name = job_name(job) if job is not None else None
    return show(
        place, view, lambda client: _losses(client.losses(name, limit, acknowledged=acknowledged), acknowledged)
    )


def _losses(found: list[LossReport], acknowledged: bool) -> Answer:
    def listings(times: Times) -> list[Listing]:
        shown = Listing(
            "job",
            "checkpoint",
            Column(name="sink or source", spare=2),
            "slot",
            Column(name="given up", spare=1),
            Column(name="why", text=True),
            Column(name="what is lost", text=True),
            Column(name="acknowledged", text=True),
            if_empty="No records were given up." if acknowledged else "No loss is unacknowledged.",
        )
        for loss in found:
            shown.add(
                loss.job,
                str(loss.checkpoint),
                loss.participant,
                str(loss.settlement.slot),
                times.of(loss.recorded_at),
                loss.reason,
                f"{loss.settlement.outcome.value}: {loss.settlement.evidence}",
                loss.acknowledgement or "no",
            )
        return [shown]

    code = exit_code(sum(not loss.acknowledgement for loss in found))
    return Answer(values=found, listings=listings, code=code)


def acknowledge_losses(job: str, checkpoint: str, reason: str, place: CoordinatorLocation) -> None:
    """Acknowledge the losses of one checkpoint, or all of the job. Raises RefusedError when there are none."""
    known = job_name(job)
    with operators(place) as (client, _):
        losses = _unacknowledged(client, known, checkpoint)
        for (number, participant), slots in losses.items():
            answer = client.acknowledge_loss(known, number, participant, reason, slots=slots)
            if answer.verdict not in (Verdict.ACCEPTED, Verdict.DUPLICATE):
                raise RefusedError(
                    f"The loss of checkpoint {number} of job {job} was not acknowledged: {answer.detail}. Nothing else "
                    "was changed."
                )
            print_result(
                f"The loss of slots {', '.join(map(str, slots))} of {participant} in checkpoint {number} of job {job} "
                "is acknowledged."
            )


def _unacknowledged(
    client: OperatorClient, job: JobName, checkpoint: str
) -> dict[tuple[int, ParticipantName], list[int]]:
    """Return slots by checkpoint and participant."""
    if checkpoint != _ALL and not (checkpoint.isascii() and checkpoint.isdigit()):
        raise ConfigurationError(f"{checkpoint!r} is no checkpoint. Nothing was changed. Give its number, or {_ALL}.")
    found: dict[tuple[int, ParticipantName], list[int]] = {}
    for loss in _wanted(client.losses(job, MAX_LISTED), checkpoint):
        found.setdefault((loss.checkpoint, loss.participant), []).append(loss.settlement.slot)
    if not found:
        where = "" if checkpoint == _ALL else f" of checkpoint {checkpoint}"
        raise RefusedError(
            f"Job {job} has no unacknowledged loss{where}. Nothing was changed. See onceward losses {job}."
        )
    return {key: sorted(slots) for key, slots in sorted(found.items())}


def _wanted(losses: list[LossReport], checkpoint: str) -> list[LossReport]:
    return [loss for loss in losses if checkpoint == _ALL or loss.checkpoint == int(checkpoint)]
