"""``onceward takeover``, ``onceward adopt``: permit one start that would be refused.

A permission names what the person saw: the generation of the live driver, or the claim. The start that uses it replaces
that, so no later start can use it.
"""

import re

from onceward.common.errors import ConfigurationError, RefusedError
from onceward.operate.connecting import CoordinatorLocation, job_name, operators
from onceward.operate.prompts import confirm, print_result, say
from onceward.protocol.answers import Verdict
from onceward.protocol.values import CheckpointId, Claim, Generation

__all__ = ["permit_adoption", "permit_takeover"]

_CLAIM = re.compile(r"(.+):([0-9]{1,16}):([0-9]{1,16})")


def permit_takeover(job: str, reason: str, place: CoordinatorLocation) -> None:
    """Let the next driver replace the live one. Raises RefusedError when no driver is alive, or it is embedded."""
    known = job_name(job)
    if place.embedded:
        raise RefusedError(
            "Nothing was permitted: without --coordinator, the coordinator runs inside the driver, and a second driver "
            f"cannot use its directory. Stop that driver (onceward stop {job}, or end its process), then start the job."
        )
    with operators(place) as (client, _):
        generation = client.job(known).generation
        answer = client.permit_takeover(known, generation, reason)
    if answer.verdict not in (Verdict.ACCEPTED, Verdict.DUPLICATE):
        raise RefusedError(f"No takeover of job {job} was permitted: {answer.detail}. Nothing was changed.")
    before = " before" if answer.verdict is Verdict.DUPLICATE else ""
    print_result(
        f"The next driver of job {job} was permitted{before} to replace the live driver of generation {generation}: "
        f"start it now. The permission ends with generation {generation}."
    )


def permit_adoption(job: str, named: str, reason: str, place: CoordinatorLocation, *, yes: bool) -> None:
    """Say what may be written twice, ask for confirmation, and let the next start adopt the claim.

    Raises ConfigurationError without a confirmation or if ``named`` is no claim, RefusedError for a damaged job.
    """
    known, claim = job_name(job), _claim(named)
    what = f"the claim of store {claim.store_id} (generation {claim.generation}, through checkpoint {claim.completed})"
    with operators(place) as (client, _):
        say(
            f"job {job} is to start from store {client.store_id()} although its sink's cluster has {what}. What that "
            "store completed and this one does not know is written again. If that store still runs the job, both write"
        )
        confirm(yes, f"Job {job} was not permitted to adopt {what}")
        answer = client.permit_adoption(known, claim, reason)
    if answer.verdict not in (Verdict.ACCEPTED, Verdict.DUPLICATE):
        raise RefusedError(f"Job {job} was not permitted to adopt {what}: {answer.detail}. Nothing was changed.")
    before = " before" if answer.verdict is Verdict.DUPLICATE else ""
    print_result(
        f"Job {job} was permitted{before} to adopt {what}: start it now. The permission ends when the job has claimed "
        "its sink's cluster; it does not hold for another claim."
    )


def _claim(named: str) -> Claim:
    found = _CLAIM.fullmatch(named)
    if found is None:
        raise ConfigurationError(f"{named!r} names no claim. Nothing was changed. Copy it from the refused start.")
    return Claim(store_id=found[1], generation=Generation(int(found[2])), completed=CheckpointId(int(found[3])))
