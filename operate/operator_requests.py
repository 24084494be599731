"""``onceward savepoint``, ``checkpoint``, ``stop``, ``cancel``, ``restore``: send a request to a job."""

import contextlib
import re
import sys
import time
from collections.abc import Iterator

from onceward.client.operators import MAX_LISTED, OperatorClient
from onceward.common.errors import CheckpointFailedError, RefusedError
from onceward.operate.connecting import CoordinatorLocation, job_name, operators, without_driver
from onceward.operate.prompts import confirm, print_result, say
from onceward.operate.waiting import until, until_ended
from onceward.protocol.answers import Answer, Verdict
from onceward.protocol.requests import Request, RequestState
from onceward.protocol.values import CheckpointKind, CheckpointState, JobName

__all__ = ["cancel_job", "delete_savepoint", "restore_job", "stop_job", "take"]


def take(
    job: str, place: CoordinatorLocation, kind: CheckpointKind, *, name: str = "", stop: bool = False, wait: bool
) -> None:
    """Request a checkpoint or a savepoint, and wait until it is decided; print its id on standard output.

    :param stop: also wait until the job has stopped.

    Raises RefusedError when the request is rejected, CheckpointFailedError when it fails, and the errors of
    `until_ended`.
    """
    known = job_name(job)
    with operators(place) as (client, momentary):
        if momentary:
            without_driver(client, known)
        answer = client.request_checkpoint(known, kind, name=name, stop=stop)
        request = answer.request
        if answer.verdict not in (Verdict.ACCEPTED, Verdict.DUPLICATE) or request is None:
            raise RefusedError(
                f"No {kind.value} of job {job} is taken: {answer.detail}. Nothing was changed; the job's data are as "
                f"they were. {_remedy(answer)}"
            )
        if not wait:
            print_result(
                f"A {kind.value} of job {job} is asked for; onceward checkpoints {job} shows when it is there."
            )
            return
    with _announced(f"The {kind.value} is still taken", known):
        request = _decided(place, known, request)
    if request.state is RequestState.FAILED:
        kept = " The job was not stopped by it." if stop else ""
        raise CheckpointFailedError(
            f"The {kind.value} of job {job} failed: {request.detail}. No record is lost or doubled: they belong to the "
            f"next checkpoint.{kept} See onceward history {job}, and retry when the job runs."
        )
    print_result(request.checkpoint)
    sys.stdout.flush()
    if stop:
        with _announced("The job stops anyway", known):
            say(until_ended(place, known))


def _remedy(answer: Answer) -> str:
    if answer.verdict is Verdict.QUEUE_FULL:
        return "Wait for some of them."
    return "Start the job first." if answer.verdict is Verdict.TOO_LATE else "Correct the request and retry."


def _decided(place: CoordinatorLocation, job: JobName, request: Request) -> Request:
    """Wait until the request is decided, and report its state meanwhile."""
    shown: RequestState | None = None
    begun = time.monotonic()

    def decided(client: OperatorClient) -> Request | None:
        nonlocal shown
        now = client.request(job, request.id)
        if now.state.ended:
            return now
        if now.state is not shown:
            shown = now.state
            at = f" as checkpoint {now.checkpoint}" if now.checkpoint else ""
            say(f"the {now.kind.value} of job {job} is {shown.value}{at}; waiting ...")
        return None

    ended = until(place, job, decided)
    say(f"the {ended.kind.value} of job {job} has {ended.state.value} after {time.monotonic() - begun:.1f} s")
    return ended


@contextlib.contextmanager
def _announced(what: str, job: JobName) -> Iterator[None]:
    """Say on Ctrl-C that only the wait ends, and that the request stays in force."""
    try:
        yield
    except KeyboardInterrupt:
        say(f"{what}: your request stays in force. onceward jobs and onceward history {job} show it")
        raise


def _id_of(client: OperatorClient, job: JobName, named: str) -> int:
    """Return the id of a checkpoint that is given by its id, or of a savepoint by its name. Raises RefusedError."""
    if re.fullmatch("[1-9][0-9]{0,15}", named):
        return int(named)
    decided = (CheckpointState.COMPLETED, CheckpointState.SETTLED)
    known = [
        one.checkpoint for one in client.checkpoints(job, MAX_LISTED) if one.name == named and one.state in decided
    ]
    if len(known) == 1:
        return known[0]
    which = f"savepoints {', '.join(map(str, sorted(known)))} have the name" if known else "no savepoint has the name"
    raise RefusedError(
        f"{which[0].upper()}{which[1:]} {named!r} in job {job}. Nothing was changed. Give the id: onceward checkpoints "
        f"{job} shows which savepoints there are."
    )


def delete_savepoint(job: str, named: str, place: CoordinatorLocation) -> None:
    """Release a savepoint to retention. Raises RefusedError if it is no savepoint, or the job's next start needs it."""
    with operators(place) as (client, _):
        checkpoint = _id_of(client, job_name(job), named)
        answer = client.delete_savepoint(job_name(job), checkpoint)
    if answer.verdict is not Verdict.ACCEPTED:
        raise RefusedError(
            f"Savepoint {checkpoint} of job {job} was not deleted: {answer.detail}. Nothing was changed. "
            f"onceward checkpoints {job} shows which savepoints there are."
        )
    print_result(f"Savepoint {checkpoint} of job {job} is removed like any other checkpoint from now on.")


def stop_job(job: str, place: CoordinatorLocation, *, wait: bool) -> None:
    """Stop a job. Raises RefusedError when it is unknown or not running, and the errors of `until_ended`."""
    known = job_name(job)
    with operators(place) as (client, momentary):
        if momentary:
            without_driver(client, known)
        answer = client.stop(known)
    if answer.verdict not in (Verdict.ACCEPTED, Verdict.DUPLICATE):
        raise RefusedError(f"Job {job} was not stopped: {answer.detail}. Nothing was changed.")
    asked = "was asked to stop" + (" before" if answer.verdict is Verdict.DUPLICATE else "")
    if not wait:
        print_result(f"Job {job} {asked}; it ends after it has settled.")
        return
    say(f"job {job} {asked}")
    with _announced("The job stops anyway", known):
        print_result(until_ended(place, known))


def cancel_job(job: str, place: CoordinatorLocation) -> None:
    """Cancel a job. Raises RefusedError if it is unknown, has ended, or has decided transactions but no driver."""
    with operators(place) as (client, momentary):
        if momentary:
            without_driver(client, job_name(job))
        answer = client.cancel(job_name(job))
    match answer.verdict:
        case Verdict.ACCEPTED:
            print_result(f"Job {job} was cancelled: it settles completed checkpoints and aborts the rest.")
        case Verdict.DUPLICATE:
            print_result(f"Job {job} was cancelled before.")
        case _:
            raise RefusedError(f"Job {job} was not cancelled: {answer.detail}. Nothing was changed.")


def restore_job(job: str, named: str, reason: str, place: CoordinatorLocation, *, yes: bool) -> None:
    """Say what will repeat, ask for confirmation, and order the next generation back to an older checkpoint.

    Raises ConfigurationError without a confirmation, RefusedError when the coordinator rejects it.
    """
    known = job_name(job)
    with operators(place) as (client, momentary):
        if momentary:
            without_driver(client, known)
        checkpoint = _id_of(client, known, named)
        consequence = _consequence(client, known, checkpoint)
        say(consequence)
        confirm(yes, f"Job {job} was not restored to checkpoint {checkpoint}: {consequence}")
        answer = client.restore(known, checkpoint, reason)
    match answer.verdict:
        case Verdict.ACCEPTED:
            print_result(f"Job {job} begins with the positions of checkpoint {checkpoint} when it is started next.")
        case Verdict.DUPLICATE:
            print_result(f"Job {job} was restored to checkpoint {checkpoint} before.")
        case _:
            raise RefusedError(
                f"Job {job} was not restored to checkpoint {checkpoint}: {answer.detail}. Nothing was changed."
            )


def _consequence(client: OperatorClient, job: JobName, checkpoint: int) -> str:
    newest = client.job(job).last_completed
    later = [
        one
        for one in client.checkpoints(job, MAX_LISTED)
        if one.checkpoint > checkpoint and one.state in (CheckpointState.COMPLETED, CheckpointState.SETTLED)
    ]
    newest = max([newest, *(one.checkpoint for one in later)])
    if newest <= checkpoint:
        return f"no output of job {job} is known after checkpoint {checkpoint}"
    records = sum(one.records_written for one in later)
    return (
        f"output of job {job} after checkpoint {checkpoint} up to checkpoint {newest} repeats: at least {records} "
        "records are written a second time, and stay where they are from the first"
    )
