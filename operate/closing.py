"""``onceward close``: close an output that a job no longer has.

Its systems come first, then the store; if the command is killed, running it again continues.
"""

from pathlib import Path

from onceward.common.errors import ConfigurationError, RefusedError
from onceward.operate.brokers import brokers
from onceward.operate.connecting import CoordinatorLocation, job_name, operators
from onceward.operate.prompts import confirm, print_result, say
from onceward.protocol.answers import Verdict
from onceward.protocol.values import Claim, Participant
from onceward.wire.rows import JobSummary

__all__ = ["close_output"]


def close_output(
    job: str, output: str, reason: str, place: CoordinatorLocation, clusters: Path | None, *, yes: bool
) -> None:
    """Raises RefusedError if the job has no such output that is gone, or if no driver has gone on without it;
    ConfigurationError without systems."""
    if clusters is None:
        raise ConfigurationError(
            "Nothing was closed. Name the systems of the job's outputs with --systems FILE: what the output has left "
            "is removed there."
        )
    known = job_name(job)
    with operators(place) as (client, _), brokers(clusters) as reached:
        summary = client.describe(known).summary
        gone = _gone(summary, output)
        newest = client.checkpoint(known, summary.last_completed).summary if summary.last_completed else None
        if newest is None or newest.generation != summary.generation:
            raise RefusedError(
                f"Output {output} of job {job} was not closed: the driver without it has completed no checkpoint yet, "
                "so what its systems keep may still be needed. Nothing was changed. Start the job, and try again."
            )
        say(f"what job {job} has left on systems that none of its outputs is on is ended and removed")
        confirm(yes, f"Output {output} was not closed")
        claim = Claim(store_id=client.store_id(), generation=summary.generation, completed=summary.last_completed)
        for done in reached.release(known, gone.kind, claim):
            say(done)
        answer = client.close_output(known, gone.name, reason)
        if answer.verdict is not Verdict.ACCEPTED:
            raise RefusedError(f"Output {output} of job {job} was not closed: {answer.detail}.")
    print_result(f"Output {output} of job {job} is closed.")


def _gone(summary: JobSummary, output: str) -> Participant:
    found = next((one for one in summary.gone_outputs if one.name == output), None)
    if found is None:
        names = ", ".join(one.name for one in summary.gone_outputs) or "none"
        raise RefusedError(
            f"Output {output} of job {summary.job} was not closed: it is none that is gone ({names}). Nothing was "
            "changed. Take it out of the program and start the job first."
        )
    return found
