"""What a program says of its dead letters, and the limits that halt the job when there are too many."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import add
from typing import Any, cast

from onceward.common.errors import ConfigurationError, HaltedError
from onceward.connectors.interfaces import Sink, SinkSession, Source, partitions_of
from onceward.connectors.letter_counts import LetterCounts
from onceward.connectors.letters import ALIASES, DEAD_LETTERS, Wanted
from onceward.connectors.slots import UnfitKind
from onceward.connectors.tasks import Vote
from onceward.coordinator.service.kinds import installed_kinds, part
from onceward.driver.output import Output
from onceward.driver.spark.passes import Marks, Pass, Share
from onceward.executor.aside import ByColumn, Making, OfFunction, SettingAside
from onceward.executor.functions import Router, by_name, to_one
from onceward.executor.letters import TRANSFORM, LettersTo, Limits, Reasons, Rules, Window, too_many
from onceward.protocol.values import CheckpointId, Document, JobName, ParticipantName

__all__ = [
    "OF_A_LETTER",
    "DeadLetters",
    "LetterCount",
    "LettersOfQuery",
    "letters_source",
    "outputs_with",
    "routed",
    "setting_aside",
]

OF_A_LETTER = ("key", "value", "headers", "topic", "partition", "offset", "timestamp")
"""Columns of a source of which a letter is made."""
_ON = (TRANSFORM, *UnfitKind)
_READ = "brought back"
_PERCENT = re.compile(r"(\d+(?:\.\d+)?)\s*%")


@dataclass(frozen=True)
class DeadLetters:
    """Where the records go for which a function on batches raises, that a DataFrame marks, or that an output refuses,
    instead of stopping the job.

    They are written in the same decision as all other records of their checkpoint. A letter has its record's key, value
    and headers, and headers ``onceward.error.*`` that say where it came from and why (docs/how-to/dead-letters.md).

    sink: where they go.
    where: of a DataFrame: the SQL condition of a letter, on the columns of the job's transform, which keeps the columns
        of the source. The ``where`` of each output says which records it gets.
    reason: of a DataFrame: SQL, the text that says why.
    on: what makes a record a letter. ``transform``: the function, or ``where``; the others are what an output refuses:
        ``too_large`` for its topic, ``schema`` for a value that does not fit its column, and ``refused`` for all else.
    rate: the job halts if more of its last 10,000 records became letters, and more than 20: ``"1%"``, or a number from
        0 to 1.
    total: the job halts if it has more letters than this, counted over all its runs; None = any number. To go on, give
        a larger number.
    aliases: also write the headers of Kafka Connect (``"connect"``), of Kafka Streams (``"streams"``), or of both (a
        tuple), for programs that know these.
    """

    sink: Sink
    where: str | None = None
    reason: str = "reason"
    on: Collection[str] = _ON
    rate: str | float = "1%"
    total: int | None = None
    aliases: str | Collection[str] = ()

    @property
    def marks(self) -> Marks | None:
        """What a DataFrame marks; None without ``where``."""
        return None if self.where is None else Marks(self.where, self.reason)

    def rules(self, job: JobName, *, of_batches: bool) -> Rules:
        """Return what becomes a letter of ``job``. ``of_batches``: it has a function on batches. Raises
        ConfigurationError."""
        given: object = self.on
        on = [given] if isinstance(given, str) or not isinstance(given, Collection) else list(given)
        if not on or any(one not in _ON for one in on) or given in _ON:
            raise ConfigurationError(
                f"dead_letters: on={given!r} does not say what becomes a letter. Nothing was started. Give some of "
                f"{', '.join(map(repr, map(str, _ON)))}."
            )
        if of_batches and self.where is not None:
            raise ConfigurationError(
                "dead_letters: where= marks the letters of a DataFrame; with transform_batches the records are letters "
                "for which it raises. Nothing was started. Leave out where=."
            )
        if not of_batches and (self.where is None) == (TRANSFORM in on):
            raise ConfigurationError(
                "dead_letters: Spark does not say for which record an expression fails, so where= marks the letters of "
                "a DataFrame. Nothing was started. "
                + (
                    'Give where=, or on= without "transform" to set aside only what outputs refuse.'
                    if self.where is None
                    else 'Add "transform" to on=, or leave out where=.'
                )
            )
        return Rules(job, self.limits(), frozenset(map(str, on)), self._aliases())

    def _aliases(self) -> tuple[str, ...]:
        """Raises ConfigurationError."""
        given: object = self.aliases
        names = [given] if isinstance(given, str) or not isinstance(given, Collection) else list(given)
        if any(one not in ALIASES for one in names):
            raise ConfigurationError(
                f"dead_letters: aliases={given!r} does not name headers. Nothing was started. Give "
                f"{' or '.join(map(repr, ALIASES))}, or both."
            )
        return tuple(dict.fromkeys(map(str, names)))

    def limits(self) -> Limits:
        """Raises ConfigurationError."""
        rate: object = self.rate
        if isinstance(rate, str) and (percent := _PERCENT.fullmatch(rate.strip())):
            rate = float(percent[1]) / 100
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate <= 1:
            raise ConfigurationError(
                f"dead_letters: rate={self.rate!r} is not a share of the records. Nothing was started. Give a "
                'percentage such as "1%", or a number above 0 and at most 1.'
            )
        for name, text in (("where", self.where), ("reason", self.reason)):
            if not isinstance(cast("object", text), str) and (name, text) != ("where", None):
                raise ConfigurationError(
                    f"dead_letters: {name}={text!r} is no SQL text. Nothing was started. Give an expression such as "
                    '"reason is not null", or a column\'s name.'
                )
        total: object = self.total
        if total is not None and (isinstance(total, bool) or not isinstance(total, int) or total < 1):
            raise ConfigurationError(
                f"dead_letters: total={total!r} is not a number of letters. Nothing was started. Give at least 1, or "
                "None for any number."
            )
        return Limits(rate=float(rate), total=self.total)


def outputs_with(
    job: JobName,
    dead_letters: DeadLetters | None,
    outputs: Mapping[ParticipantName, Output],
    *,
    alone: bool,
    on_batches: bool = False,
) -> tuple[Mapping[ParticipantName, Output], Rules | None]:
    """Return the outputs of ``job``, with that of its dead letters, and what becomes a letter. Raises
    ConfigurationError for dead letters that cannot be written.

    :param alone: ``sink=`` names the only output.
    :param on_batches: a function on batches makes what is written, and no DataFrame does.
    """
    if dead_letters is None:
        return outputs, None
    if DEAD_LETTERS in outputs or not isinstance(cast("object", dead_letters), DeadLetters):
        raise ConfigurationError(
            f"dead_letters: must be a DeadLetters(sink), and no output may be called {DEAD_LETTERS}. Nothing was "
            "started."
        )
    rules = dead_letters.rules(job, of_batches=on_batches)
    if not on_batches and all(output.transform is not None for output in outputs.values()):
        raise ConfigurationError(
            "dead_letters: each output has a transform= of its own, and what such a branch makes is not set aside. "
            "Nothing was started. Give one of them where= and select= instead, or leave dead_letters= out."
        )
    if alone and dead_letters.where is not None:
        raise ConfigurationError(
            "dead_letters: with where=, outputs= say which records and columns are no letters. Nothing was started. "
            'Instead of sink=, give outputs={"out": Output(sink, where="reason is null", select=[...])}.'
        )
    return {**outputs, DEAD_LETTERS: Output(dead_letters.sink.named(DEAD_LETTERS))}, rules


def letters_source(dead_letters: DeadLetters, wanted: Wanted, columns: Sequence[str]) -> Source:
    """Return the source of the dead letters that are ``wanted``, with the ``columns`` of the job's own source. Raises
    ConfigurationError."""
    sink: Any = dead_letters.sink
    kind = installed_kinds(_READ).get(sink.participant.kind)
    if kind is None or not kind.letters or getattr(sink, "topic", None) is None:
        raise ConfigurationError(
            f"The dead letters of job {wanted.job} go to no single topic of Kafka, so they cannot be read. Nothing was "
            f"{_READ}. Read them with a job of your own."
        )
    source: Source = part(sink.participant.kind, kind.letters, _READ)(sink.cluster, sink.topic, wanted, columns=columns)
    return source


_SPARKS_TYPES = {
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "headers": "array<struct<key:string,value:binary>>",
}
"""Of the columns of Spark's Kafka source. A column of a query with such a name and another type is another thing."""


class LettersOfQuery:
    """The dead letters of a query, whose DataFrames may have any columns."""

    def __init__(self, dead_letters: DeadLetters, rules: Rules) -> None:
        self._letters, self._rules = dead_letters, rules

    def of_batch(self, shares: Sequence[Share], columns: Sequence[tuple[str, str]]) -> Pass:
        """Return what is written of a batch. ``columns``: names and types of its DataFrame."""
        known = [name for name, kind in columns if _SPARKS_TYPES.get(name, kind) == kind]
        given = [replace(share, planned=share.name != DEAD_LETTERS) for share in shares]
        # never empty: then there is a column for each sink, whatever the batch has
        along = [name for name in known if name in OF_A_LETTER] or OF_A_LETTER
        return Pass(given, whole=True, along=along, marks=self._letters.marks)

    def route(self, sinks: Mapping[ParticipantName, SinkSession]) -> SettingAside:
        """Return the router of a batch to ``sinks``."""
        return setting_aside(ByColumn(), sinks, self._rules)


def setting_aside(making: Making, sinks: Mapping[ParticipantName, SinkSession], rules: Rules) -> SettingAside:
    """Return the router that sets records aside, to one of ``sinks``: :data:`DEAD_LETTERS`."""
    partitions = partitions_of(sinks[DEAD_LETTERS])
    return SettingAside(making=making, to=LettersTo(sink=DEAD_LETTERS, rules=rules, partitions=partitions))


def routed(
    function: Callable[..., Any],
    sinks: Mapping[ParticipantName, SinkSession],
    rules: Rules | None,
    hidden: Sequence[str] = (),
) -> Router | SettingAside:
    """Return the router of a function on batches to ``sinks``. With ``rules`` one of them is :data:`DEAD_LETTERS`, and
    gets the records that are set aside. ``hidden``: the last columns of the batches, which the function does not get.
    """
    names = [name for name in sinks if rules is None or name != DEAD_LETTERS]
    route: Callable[..., Router] = partial(by_name, names) if len(names) > 1 else partial(to_one, names[0])
    if rules is None:
        return route(function)
    return setting_aside(OfFunction(function, route, len(hidden)), sinks, rules)


class LetterCount:
    """Counts the dead letters of a job over its checkpoints. Used by the driver's main thread."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._counted: Mapping[CheckpointId, LetterCounts] = {}
        """By checkpoint: the base of the next one, and what builds on it."""

    def restore(self, checkpoint: CheckpointId, state: Document | None) -> None:
        """Go on from what ``checkpoint`` has stored; None for one that has stored nothing. Raises HaltedError."""
        try:
            counted = LetterCounts() if state is None else LetterCounts.of(state)
        except ValueError as error:
            raise HaltedError(
                f"The job's last checkpoint counts its dead letters as {error}. Nothing was read. Start a newer "
                "version of Onceward"
            ) from error
        self._counted = {checkpoint: counted}

    def count(self, checkpoint: CheckpointId, base: CheckpointId, *, read: int, votes: Sequence[Vote] = ()) -> Document:
        """Count the letters of ``checkpoint``, which builds on ``base`` and has read ``read`` records. Return what its
        snapshot stores. Raises HaltedError if there are too many."""
        before = self._counted.get(base, LetterCounts())
        letters, reasons = sum(vote.records for vote in votes), _reasons(votes)
        window = Window(self.limits, before.window)
        total = before.letters + letters
        if letters and (excess := window.excess(read, letters) or self.limits.excess(total)):
            raise HaltedError(f"{too_many(excess, reasons)}.")
        window.add(read, letters)
        counted = before.followed(checkpoint, letters, window.entries, reasons.newest)
        self._counted = {base: before, checkpoint: counted}
        return counted.to_document()

    def kinds(self, votes: Sequence[Vote]) -> Mapping[str, int]:
        """Return how many letters of a checkpoint each class has. Quotes no record."""
        return _reasons(votes).kinds


def _reasons(votes: Sequence[Vote]) -> Reasons:
    return reduce(add, (Reasons(vote.reasons) for vote in votes), Reasons())
