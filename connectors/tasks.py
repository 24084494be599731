"""The data exchanged between the driver and an executor task. Imported on executors: standard library only."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from onceward.common.errors import CheckpointFailedError, PostponedError

TASK_PROPERTY = "onceward.task"
"""Spark local property that carries one checkpoint's :class:`CheckpointTask` to all of its tasks, as JSON.

A local property instead of a closure lets one DataFrame serve many checkpoints (measured on 2 cores)."""


def ranges_of(split: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the ranges in ``split`` in reading order: the split itself, unless it joins several."""
    ranges: Sequence[Mapping[str, Any]] = split.get("ranges", (split,))
    return ranges


@dataclass(kw_only=True)
class CheckpointTask:
    """The work of one checkpoint, the same text for all of its Spark tasks."""

    job: str
    generation: int
    checkpoint: int
    """A staying task learns it only when its batches end; 0 until then."""
    splits: tuple[Mapping[str, Any], ...]
    """One per Spark partition of the source, in order: what the source's reader reads there."""
    columns: tuple[str, ...]
    """Columns of the source that the plan uses. A reader may fill all others with nulls."""
    sinks: Mapping[str, Mapping[str, Any]]
    """The sinks that its tasks write to, by participant: options for all of a sink's writers in this checkpoint."""
    submitted: float = 0.0
    """When the driver began the tasks, in seconds since the epoch."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "CheckpointTask":
        raw = json.loads(text)
        return cls(**{**raw, "splits": tuple(raw["splits"]), "columns": tuple(raw["columns"])})


@dataclass(frozen=True)
class Digest:
    """Shows whether two runs gave the same records, in whatever order: how many, and the sum of their hashes.

    As text: the number, a colon, and the sum modulo 2**64 as 16 hex digits.
    """

    records: int = 0
    hashes: int = 0

    def __add__(self, other: "Digest") -> "Digest":
        return Digest(self.records + other.records, (self.hashes + other.hashes) % 2**64)

    def __str__(self) -> str:
        return f"{self.records}:{self.hashes:016x}"

    @classmethod
    def parse(cls, text: str) -> "Digest":
        """Raises ValueError for a text that is none."""
        records, hashes = text.split(":")
        return cls(int(records), int(hashes, 16))


@dataclass(frozen=True, kw_only=True)
class Vote:
    """One slot's answer, returned by the winning attempt of its Spark task."""

    slot: int
    """Spark partition id of the sink's DataFrame."""
    attempt: int
    """Spark's task attempt id, unique in the application."""
    records: int
    """Records that the sink's system confirmed. Equal to the number produced; otherwise the task would have failed."""
    bytes: int
    """Bytes of keys and values of those records."""
    body: Mapping[str, Any] = field(default_factory=dict)
    """What the sink's ``pre_commit`` needs; empty for a slot without records, which has no transaction."""
    digests: Mapping[str, str] = field(default_factory=dict)
    """The texts of the :class:`Digest` of the slot's records, by the number of the Spark partition in which they were
    before partitions were coalesced into slots. Without partitions that have no records; empty when not computed."""
    steps: Mapping[str, float] = field(default_factory=dict)
    """Seconds of each step of the task (``timings.py``); empty when not measured."""
    reasons: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Why the slot's records are dead letters: the number of each reason, and an example. Empty for other sinks."""
    held: float = 0.0
    """Seconds for which the system held the task's reading back, as for a quota; 0 if it read in another process."""

    @property
    def digest(self) -> Digest:
        """The digest of all records of the slot."""
        return sum(map(Digest.parse, self.digests.values()), Digest())

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Vote":
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Ballot:
    """What the winning attempt of a task returns: its vote for each sink that it has written to."""

    votes: Mapping[str, Vote]

    def measured(self, steps: Mapping[str, float], held: float = 0.0) -> "Ballot":
        """Return the ballot with the times of the task. The vote for its first sink has them: they are of the task, not
        of a sink."""
        first = next(iter(self.votes))
        return Ballot({**self.votes, first: replace(self.votes[first], steps=steps, held=held)})

    def explained(self, sink: str, reasons: Mapping[str, Sequence[Any]]) -> "Ballot":
        """Return the ballot with the reasons of the dead letters in the slot of ``sink``."""
        if sink not in self.votes or not reasons:
            return self
        return Ballot({**self.votes, sink: replace(self.votes[sink], reasons=reasons)})

    def to_json(self) -> str:
        return json.dumps({sink: asdict(vote) for sink, vote in self.votes.items()}, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> "Ballot":
        return cls({sink: Vote(**vote) for sink, vote in json.loads(text).items()})


@dataclass(frozen=True)
class Postponed:
    """What a task returns instead of a ballot when the function on its batches asks to be called later. Spark would try
    a task that raises again at once."""

    why: str
    after: float
    """Seconds."""

    def to_json(self) -> str:
        return json.dumps([self.why, self.after])

    @classmethod
    def of(cls, text: str) -> "Postponed | None":
        """Return None for the text of a ballot."""
        return cls(*json.loads(text)) if text.startswith("[") else None

    def error(self) -> PostponedError:
        later = f"in {self.after:g} s" if self.after else "later"
        return PostponedError(
            f"The function asks to be called again {later}: {self.why or 'it gives no reason'}. Nothing of the "
            "checkpoint becomes visible, and its records stay unread until then",
            after=self.after,
        )


def check_ballots(texts: Iterable[str], sinks: Iterable[str], expected: int | None) -> dict[str, tuple[Vote, ...]]:
    """Return the votes for each of ``sinks``, ordered by slot: 0..n-1, each once.

    ``expected`` is n if it is known before the job (plans without a shuffle), else None: Spark may choose it during the
    run. Raises CheckpointFailedError when a slot is missing or voted twice: its records would be lost or doubled.
    Raises PostponedError if a task has written nothing because it was asked to wait.
    """
    texts = list(texts)
    if postponed := [one for one in map(Postponed.of, texts) if one is not None]:
        raise max(postponed, key=lambda one: one.after).error()
    ballots = [Ballot.from_json(text) for text in texts]
    wanted = len(ballots) if expected is None else expected
    return {sink: _votes(sink, [each.votes[sink] for each in ballots if sink in each.votes], wanted) for sink in sinks}


def _votes(sink: str, votes: Iterable[Vote], wanted: int) -> tuple[Vote, ...]:
    ordered = sorted(votes, key=lambda vote: vote.slot)
    slots = [vote.slot for vote in ordered]
    if slots != list(range(wanted)):
        raise CheckpointFailedError(
            f"The Spark job returned votes for sink {sink} of slots {slots}, wanted {wanted} slots from 0 on. Nothing "
            "of it becomes visible; its records are written again."
        )
    return tuple(ordered)
