"""The dead letters of a job, as its page shows them. Pure."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from onceward.connectors.letter_counts import CLASSES, LetterCounts, LettersOfClass, letters_in
from onceward.connectors.letters import DEAD_LETTERS
from onceward.protocol.values import CheckpointId, JobName
from onceward.wire.rows import CheckpointSummary, JobDescription

__all__ = ["JobLetters", "LetterRow", "letters_of"]

_KAFKA = "kafka"
"""The kind of a sink whose letters the commands find."""


@dataclass(frozen=True, kw_only=True)
class LetterRow:
    """The letters with one class of reason."""

    of: LettersOfClass
    course: Sequence[int]
    """How many each of :attr:`JobLetters.checkpoints` has."""


@dataclass(frozen=True, kw_only=True)
class JobLetters:
    upto: CheckpointId
    """The newest checkpoint that counts them; 0 if none does."""
    total: int | None
    """None if that checkpoint cannot be read."""
    rows: Sequence[LetterRow]
    """The commonest class first."""
    unclassed: int
    """Letters whose class an earlier version did not store."""
    checkpoints: Sequence[CheckpointId]
    """Those of the listed ones that say how many they have of each class, oldest first."""
    commands: Sequence[tuple[str, str]]
    """Each with what it does. Empty if there is nothing to list, or the commands cannot read it."""
    problem: str
    """Why it is not known how many there are; empty if it is."""


def letters_of(job: JobDescription, checkpoints: Sequence[CheckpointSummary], coordinator: str) -> JobLetters | None:
    """Return None for a job without such an output. ``checkpoints``: the newest first, each with its state."""
    output = next((one for one in job.participants if one.name == DEAD_LETTERS), None)
    if output is None:
        return None
    counting = [one for one in checkpoints if one.kept is not None]
    counts, problem = _newest(counting)
    known = [(one.checkpoint, here) for one in reversed(counting) if (here := letters_in(one.kept)) is not None]
    classes = sorted(counts.classes or () if counts is not None else (), key=lambda one: (-one.letters, one.kind))
    total = None if counts is None else counts.letters
    return JobLetters(
        upto=counting[0].checkpoint if counting else CheckpointId(0),
        total=total,
        rows=[LetterRow(of=one, course=[here.get(one.kind, 0) for _, here in known]) for one in classes[: CLASSES + 1]],
        unclassed=(total or 0) - sum(one.letters for one in classes),
        checkpoints=[checkpoint for checkpoint, _ in known],
        commands=_commands(job.summary.job, coordinator) if output.kind == _KAFKA and total != 0 else (),
        problem=problem,
    )


def _newest(counting: Sequence[CheckpointSummary]) -> tuple[LetterCounts | None, str]:
    """The counts of the newest one, or why there are none."""
    if not counting or counting[0].kept is None:
        return None, "None of the checkpoints that are listed here counts them."
    try:
        return LetterCounts.of(counting[0].kept), ""
    except ValueError as error:
        return None, f"Checkpoint {counting[0].checkpoint} counts them as {error}. A newer coordinator shows them."


def _commands(job: JobName, coordinator: str) -> Sequence[tuple[str, str]]:
    there = ["--servers", "HOST:PORT", "--coordinator", coordinator]
    return (
        (shlex.join(["onceward", "letters", job, *there]), "Lists them, with a message of each class."),
        (
            shlex.join(["onceward", "redrive", job, *there, "--dry-run"]),
            "Counts what would go back into the input. Without --dry-run they go, each once.",
        ),
    )
