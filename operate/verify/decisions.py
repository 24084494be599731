"""Check the decisions: one per checkpoint, made once, on one base, and carried out."""

from collections.abc import Iterator, Sequence

from onceward.operate.verify.history import CheckpointReport
from onceward.operate.verify.verdict import Breach

__all__ = ["broken_decisions", "unsettled"]

_STEPS = {
    "triggered": ("triggered", "completed", "settled", "aborted"),
    "completed": ("completed", "settled"),
    "settled": ("settled",),
    "aborted": ("aborted",),
}
"""The states that may be reported of a checkpoint after each state."""


def broken_decisions(reports: Sequence[CheckpointReport]) -> Iterator[Breach]:
    """Yield decisions that were changed, made twice, or made on a base that was not completed."""
    before: dict[int, CheckpointReport] = {}
    successors: dict[int, CheckpointReport] = {}
    for one in reports:
        if one.state not in _STEPS:
            continue  # unreadable: the judge reports that it is missing
        former = before.get(one.checkpoint)
        if former is not None:
            yield from _changes(former, one)
        before[one.checkpoint] = one if one.ends is not None or former is None else one._replace(ends=former.ends)
        if one.state not in ("completed", "settled") or one.kind == "restore":
            continue
        other = successors.setdefault(one.base, one)
        if other.checkpoint != one.checkpoint and not _restored(reports, one.base):
            yield Breach(
                "",
                "two checkpoints completed on one base",
                f"{other.checkpoint} and {one.checkpoint}, both on {one.base}",
            )
    for one in before.values():
        base = before.get(one.base)
        if one.state in ("completed", "settled") and base is not None and base.state not in ("completed", "settled"):
            yield Breach(
                "", "checkpoints completed on one that is not", f"{one.checkpoint} on {one.base}, which is {base.state}"
            )


def _changes(former: CheckpointReport, now: CheckpointReport) -> Iterator[Breach]:
    name = f"checkpoint {now.checkpoint}"
    if now.state not in _STEPS[former.state]:
        yield Breach("", "decisions changed", f"{name} was {former.state} and is {now.state}")
    if (now.base, now.generation) != (former.base, former.generation):
        yield Breach(
            "",
            "decisions changed",
            f"{name} was of generation {former.generation} on {former.base} and is of generation {now.generation} "
            f"on {now.base}",
        )
    if former.ends is not None and now.ends is not None and dict(former.ends) != dict(now.ends):
        lane = next(lane for lane in {**former.ends, **now.ends} if former.ends.get(lane) != now.ends.get(lane))
        yield Breach(
            "",
            "decisions changed",
            f"{name} ended {lane} at {former.ends.get(lane)} and ends it at {now.ends.get(lane)}",
        )


def _restored(reports: Sequence[CheckpointReport], base: int) -> bool:
    """True if a person went back to ``base``: the history forks there on purpose."""
    return any(one.kind == "restore" and one.base == base for one in reports)


def unsettled(reports: Sequence[CheckpointReport]) -> Iterator[Breach]:
    """Yield what is unsettled or undecided at the end."""
    for one in reports:
        if one.last and one.state == "completed":
            yield Breach("", "checkpoints are not settled", f"{one.checkpoint} of generation {one.generation}")
        elif one.last and one.state == "triggered":
            yield Breach("", "checkpoints are not decided", f"{one.checkpoint} of generation {one.generation}")
