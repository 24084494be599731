"""``onceward resolve``: a person decides what a job cannot prove."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from onceward.client.operators import OperatorClient
from onceward.common.errors import ConfigurationError, HaltedError, OncewardError, RefusedError
from onceward.operate.brokers import Brokers, Seen, brokers
from onceward.operate.connecting import CoordinatorLocation, job_name, operators, without_driver
from onceward.operate.prompts import confirm, print_result, say
from onceward.protocol.answers import Verdict
from onceward.protocol.requests import Ruling
from onceward.protocol.rulings import CONSEQUENCE
from onceward.protocol.values import (
    Author,
    Committable,
    JobName,
    Outcome,
    ParticipantName,
    Role,
    Settlement,
)
from onceward.wire.rows import CheckpointDescription, JobDescription

__all__ = ["ALL_SLOTS", "Resolution", "decide", "resolve_slots", "slots_of"]

ALL_SLOTS = "all"
_COMMIT_PATIENCE_S = 60.0
"""If a commit is unanswered for this long, it is left to the next start of the job."""


@dataclass(frozen=True, kw_only=True)
class Resolution:
    """A person's decision about slots."""

    ruling: Ruling
    slots: frozenset[int] | None
    """None for all that are unresolved."""
    sink: str | None
    """None for the only sink that has unresolved slots."""
    reason: str
    forced: bool
    yes: bool


def slots_of(text: str) -> frozenset[int] | None:
    """Parse ``all``, or numbers separated by commas. Raises ConfigurationError."""
    if text == ALL_SLOTS:
        return None
    try:
        slots = frozenset(int(part) for part in text.split(","))
    except ValueError:
        slots = frozenset()
    if not slots or min(slots) < 0:
        raise ConfigurationError(
            f"{text!r} names no slots. Nothing was changed. Write for example 3, or 0,2,5, or {ALL_SLOTS}."
        )
    return slots


def resolve_slots(job: str, resolution: Resolution, place: CoordinatorLocation, clusters: Path | None) -> None:
    """Check the evidence, state the consequence, have it confirmed, decide. Raises RefusedError, ConfigurationError."""
    known = job_name(job)
    with operators(place) as (client, momentary), brokers(clusters) as reached:
        if momentary:
            without_driver(client, known)
        decide(client, reached, known, resolution)


def decide(client: OperatorClient, reached: Brokers, job: JobName, resolution: Resolution) -> None:
    description = client.describe(job)
    if description.driven:
        raise _refused(job, f"it has a driver ({description.summary.status.value}); stop it first")
    sink = _sink(description, resolution)
    checkpoint = client.checkpoint(job, description.summary.last_completed)
    committables = _committables(description, checkpoint, sink, resolution)
    recorded = {one.settlement.slot: one.settlement for one in checkpoint.settlements if one.participant == sink}
    kind = next(one.kind for one in description.participants if one.name == sink)
    generations = range(checkpoint.summary.generation, description.summary.generation + 1)
    author = Author(job=job, participant=sink, generations=generations)
    seen = _look(reached, kind, author, committables, resolution.ruling)
    if not resolution.forced:
        _refuse_blindness(reached, description.unresolved.get(sink, {}), seen, resolution.ruling)
        _refuse_what_is_open(reached, kind, job, seen, resolution.ruling)
    for one in seen:
        say(f"{_shown(one, recorded)}: {CONSEQUENCE[resolution.ruling]}")
    confirm(resolution.yes, f"Nothing was decided for job {job}")

    slots = sorted(one.slot for one in committables)
    evidence = [settlement for one in seen if (settlement := _evidence(one, recorded)) is not None]
    answer = client.resolve(
        job,
        checkpoint.summary.checkpoint,
        sink,
        slots,
        resolution.ruling,
        resolution.reason,
        evidence=evidence,
        forced=resolution.forced,
    )
    if answer.verdict not in (Verdict.ACCEPTED, Verdict.DUPLICATE):
        raise _refused(job, f"{answer.detail}. Pass --force to decide so nevertheless")
    again = " before" if answer.verdict is Verdict.DUPLICATE else ""
    print_result(f"Slots {', '.join(map(str, slots))} of checkpoint {checkpoint.summary.checkpoint} count as "
          f"{resolution.ruling.value.replace('_', ' ')}{again}.")  # fmt: skip
    if resolution.ruling is not Ruling.COMMITTED and reached.reached:
        left = [one for one in seen if one.settlement is None or one.settlement.outcome is not Outcome.LOST]
        _end(reached, kind, author, left)
    _say_what_is_left(client, job)


def _sink(description: JobDescription, resolution: Resolution) -> ParticipantName:
    job = description.summary.job
    sinks = [one.name for one in description.participants if one.role is Role.SINK]
    if resolution.sink is not None:
        if resolution.sink not in sinks:
            raise _refused(job, f"it has no sink {resolution.sink}, only {', '.join(sinks)}")
        return ParticipantName(resolution.sink)
    open_sinks = list(description.unresolved)
    if not open_sinks and resolution.forced:
        open_sinks = sinks
    if not open_sinks:
        raise _refused(job, f"nothing is lost or in doubt; it is {description.summary.status.value}. Start it")
    if len(open_sinks) > 1:
        raise _refused(job, f"several sinks wait for a decision; choose one with --sink: {', '.join(open_sinks)}")
    return open_sinks[0]


def _committables(
    description: JobDescription, checkpoint: CheckpointDescription, sink: ParticipantName, resolution: Resolution
) -> list[Committable]:
    snapshot = checkpoint.snapshots.get(sink)
    there = {one.slot: one for one in snapshot.committables} if snapshot is not None else {}
    slots = resolution.slots if resolution.slots is not None else description.unresolved.get(sink, {}).keys()
    missing = sorted(slots - there.keys())
    if missing or not slots:
        raise _refused(
            description.summary.job,
            f"checkpoint {checkpoint.summary.checkpoint} has {'no slots ' + str(missing) if missing else 'nothing'} to "
            f"decide about; its slots that are not settled: {', '.join(map(str, sorted(there))) or 'none'}",
        )
    return [there[slot] for slot in sorted(slots)]


def _refuse_blindness(
    reached: Brokers, unresolved: Mapping[int, Outcome], seen: Sequence[Seen], ruling: Ruling
) -> None:
    """Refuse to decide about a slot without a look at the brokers, unless it was proved lost."""
    for one in seen:
        slot = one.committable.slot
        proved = unresolved.get(slot) is Outcome.LOST and ruling is not Ruling.COMMITTED
        if one.settlement is not None or proved:
            continue
        remedy = "Repair that" if reached.reached else "Name the clusters with --systems FILE"
        raise ConfigurationError(
            f"Nothing was decided: what is known now of slot {slot} must be known first, and {one.unasked}. Nothing "
            f"was changed. {remedy}, or pass --force to decide without it."
        )


def _refuse_what_is_open(reached: Brokers, kind: str, job: JobName, seen: Sequence[Seen], ruling: Ruling) -> None:
    """Refuse to count an open transaction as committed: it is not committed, and the next start would abort it."""
    doubtful = [one for one in seen if one.settlement is not None and one.settlement.outcome is Outcome.IN_DOUBT]
    if ruling is not Ruling.COMMITTED or not doubtful:
        return
    found, problems = reached.open_transactions(job, kind)
    handles = {one.handle for one in found}
    slots = [one.committable.slot for one in doubtful if one.handle in handles]
    if slots or problems:
        why = f"slots {slots} are still open at the brokers, which do not commit them" if slots else "; ".join(problems)
        raise _refused(job, f"{why}. Start the job, which asks again, or pass --force")


def _look(
    reached: Brokers, kind: str, author: Author, committables: Sequence[Committable], ruling: Ruling
) -> list[Seen]:
    """Look at the committables. For COMMITTED, try to commit them, because the decision says the same."""
    if ruling is not Ruling.COMMITTED:
        return reached.look(kind, committables)
    return reached.commit(kind, author, committables, _after(_COMMIT_PATIENCE_S))


def _after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


def _shown(seen: Seen, recorded: Mapping[int, Settlement]) -> str:
    slot = seen.committable.slot
    what = seen.holds or f"slot {slot}"
    if seen.settlement is not None:
        return f"{what}. Now it is {seen.settlement.outcome.value}: {seen.settlement.evidence}"
    halted = recorded.get(slot)
    then = f" When the job halted it was {halted.outcome.value}: {halted.evidence}" if halted is not None else ""
    return f"{what}. No broker could be asked now: {seen.unasked}.{then}"


def _evidence(seen: Seen, recorded: Mapping[int, Settlement]) -> Settlement | None:
    """Return the evidence to store with the decision. It names the records, because a report of a loss includes it."""
    if seen.settlement is not None:
        return replace(seen.settlement, evidence=f"{seen.holds}. {seen.settlement.evidence}")
    halted = recorded.get(seen.committable.slot)
    return replace(halted, evidence=f"when the job halted: {halted.evidence}") if halted is not None else None


def _end(reached: Brokers, kind: str, author: Author, seen: Sequence[Seen]) -> None:
    """Abort what is still open, so that readers do not wait for it. The decision is recorded: the next start would do
    it too."""
    try:
        reached.abort(kind, author, [one.committable for one in seen])
    except OncewardError as error:
        say(f"the rest could not be aborted now; the next start of the job does it: {error}")
        if isinstance(error, HaltedError):  # the brokers now say that it is committed
            raise


def _say_what_is_left(client: OperatorClient, job: JobName) -> None:
    left = client.describe(job)
    for sink, slots in left.unresolved.items():
        print_result(f"Still to be decided: {', '.join(f'slot {n} ({o.value})' for n, o in slots.items())} of {sink}.")
    if not left.unresolved:
        print_result(f"Job {job} is {left.summary.status.value}; it can be restarted.")


def _refused(job: str, why: str) -> RefusedError:
    return RefusedError(f"Nothing was decided for job {job}: {why}. Nothing was changed.")
