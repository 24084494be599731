"""``onceward forget``: delete a job in the coordinator's store and at the brokers.

The store comes first, then the brokers, the claim last; if the command is killed, running it again continues. The store
keeps the job's name and last ids, so that a new job of that name begins above them, whatever remains of the old one.
"""

from pathlib import Path

from onceward.common.errors import ConfigurationError, RefusedError
from onceward.operate.brokers import Brokers, brokers
from onceward.operate.connecting import CoordinatorLocation, job_name, operators, without_driver
from onceward.operate.prompts import confirm, print_result, say
from onceward.protocol.answers import Verdict
from onceward.protocol.status import JobStatus
from onceward.protocol.values import Claim, JobName, Role
from onceward.wire.rows import JobDescription

__all__ = ["forget_job"]


def forget_job(job: str, reason: str, place: CoordinatorLocation, clusters: Path | None, *, yes: bool) -> None:
    """Raises RefusedError if anything of the job is undecided, unsettled or open, ConfigurationError without
    clusters."""
    if clusters is None:
        raise ConfigurationError(
            "Nothing was deleted. Name the clusters of the job's sinks with --systems FILE: they are asked whether "
            "anything of it is open, and keep its receipts and its claim."
        )
    known = job_name(job)
    with operators(place) as (client, momentary), brokers(clusters) as reached:
        if momentary:
            without_driver(client, known)
        description = client.describe(known)
        outputs = (*description.participants, *description.summary.gone_outputs)
        kinds = sorted({one.kind for one in outputs if one.role is Role.SINK})
        _require_ended(reached, known, kinds)
        if description.summary.status is not JobStatus.FORGOTTEN:
            say(f"job {job} is deleted: its checkpoints, savepoints and history, its receipts and its claim")
            confirm(yes, f"Job {job} was not deleted")
        answer = client.forget(known, reason)
        if answer.verdict not in (Verdict.ACCEPTED, Verdict.DUPLICATE):
            raise RefusedError(f"Job {job} was not deleted: {answer.detail}. Nothing was changed.")
        last = _last(client.store_id(), description)
        for kind in kinds:
            reached.forget(known, kind, last)
    print_result(f"Job {job} is forgotten.")


def _require_ended(reached: Brokers, job: JobName, kinds: list[str]) -> None:
    for kind in kinds:
        found, problems = reached.open_transactions(job, kind)
        if problems:
            raise RefusedError(f"Nothing was deleted: what is open is not known. {'; '.join(problems)}")
        if found:
            ids = ", ".join(one.handle.id for one in found[:10])
            raise RefusedError(
                f"Nothing was deleted: {len(found)} transactions of job {job} are open: {ids}. See onceward "
                f"transactions {job}; try again when they have ended."
            )


def _last(store_id: str, description: JobDescription) -> Claim:
    summary = description.summary
    return Claim(
        store_id=store_id,
        generation=summary.generation,
        completed=summary.last_completed,
    )
