"""``onceward letters``: list a job's dead letters by reason."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from onceward.connectors.letters import Run
from onceward.operate.connecting import CoordinatorLocation, job_name, operators
from onceward.operate.dead_letters import Found, letters_of, runs_of, topic_of
from onceward.operate.prompts import print_result
from onceward.operate.tables import Column, Listing, Times, print_json, print_listings

__all__ = ["Reason", "list_letters", "reasons_of"]

_NEWEST = 3
"""Letters of each reason that are named."""


@dataclass(kw_only=True)
class Reason:
    """Letters with one reason."""

    kind: str
    """The class of the exception."""
    stage: str
    output: str
    letters: int = 0
    back: int = 0
    """How many of them ``onceward redrive`` has brought back."""
    dropped: int = 0
    attempts: int = 1
    """The most of any."""
    oldest: datetime
    newest: datetime
    records: Sequence[str] = ()
    """What the newest ones were in the input, the newest first."""
    message: str = ""
    """Of the newest one."""


def reasons_of(found: Iterable[Found], runs: Sequence[Run] = ()) -> Sequence[Reason]:
    """Group letters by reason, the commonest first. ``runs`` have brought letters back."""
    newest: dict[tuple[str, str, str], list[Found]] = {}
    reasons: dict[tuple[str, str, str], Reason] = {}
    for one in found:
        letter = one.letter
        key = letter.kind, letter.stage, letter.output
        reason = reasons.setdefault(
            key, Reason(kind=letter.kind, stage=letter.stage, output=letter.output, oldest=one.at, newest=one.at)
        )
        reason.letters += 1
        if (run := one.done_by(runs)) is not None:
            reason.dropped += bool(run.wanted.drop)
            reason.back += not run.wanted.drop
        reason.attempts = max(reason.attempts, letter.attempt)
        reason.oldest = min(reason.oldest, one.at)
        newest[key] = sorted([one, *newest.get(key, ())], key=lambda each: each.at, reverse=True)[:_NEWEST]
    for key, reason in reasons.items():
        reason.newest, reason.message = newest[key][0].at, newest[key][0].letter.message
        reason.records = [one.letter.place for one in newest[key]]
    return sorted(reasons.values(), key=lambda reason: -reason.letters)


def list_letters(
    job: str,
    place: CoordinatorLocation,
    servers: str | None,
    systems: Path | None,
    topic: str | None,
    *,
    as_json: bool,
    utc: bool,
) -> None:
    """List the letters that are in the topic now. Raises OncewardError."""
    known = job_name(job)
    with operators(place) as (client, _):
        where = topic_of(client, known, servers, systems, topic)
        runs = runs_of(client, known)
    found = reasons_of(letters_of(known, where), runs)
    if as_json:
        drops = [one.wanted.drop for one in runs if one.wanted.drop]
        print_json({"job": known, "topic": where.name, "reasons": found, "drops": drops})
        return
    times = Times(now=datetime.now(UTC), utc=utc)
    shown = Listing(
        "class",
        Column(name="output", spare=3),
        "letters",
        "back",
        Column(name="dropped", spare=5),
        Column(name="attempts", spare=4),
        Column(name="newest", spare=1),
        Column(name="newest records", text=True, spare=2),
        Column(name="message", text=True),
        title=f"topic {where.name}",
        if_empty=f"Topic {where.name} has no letters of job {known}.",
    )
    for one in found:
        shown.add(
            one.kind,
            one.output or "-",
            str(one.letters),
            str(one.back),
            str(one.dropped),
            str(one.attempts),
            times.of(one.newest),
            ", ".join(one.records),
            one.message,
        )
    print_listings([shown])
    if any(one.letters > one.back + one.dropped for one in found):
        said = f"onceward redrive {known} --servers {servers} --dry-run"
        if systems is not None:
            said = f"onceward redrive {known} --systems {systems} --dry-run"
        print_result(f"To bring back those that are not: {said}")
