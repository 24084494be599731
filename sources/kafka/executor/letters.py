"""The executor's part of a source of dead letters: reads letters, and gives the records that they were.

Imports only what the reader of Kafka imports.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import pyarrow as pa

from onceward.connectors.letters import ATTEMPT, FIRST_SEEN, INPUT, PREFIX, Letter, Run, Wanted
from onceward.connectors.tasks import ranges_of
from onceward.sources.kafka.executor.columns import LAST_MS, schema_of
from onceward.sources.kafka.executor.reader import KafkaSplitReader

__all__ = ["NAMES", "LetterReader"]

NAMES = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers")
"""What is read of a letter."""
_SCHEMA = schema_of(NAMES)


@dataclass(frozen=True, kw_only=True)
class LetterReader:
    """Reads splits whose ranges have, besides what those of Kafka have, ``wanted`` and ``before``: the present run's
    :class:`Wanted`, and the :class:`Run` before it. Pickled.

    ``topic``, ``partition``, ``offset`` and ``timestamp`` of a batch are the record's in the input, null where the
    letter does not say them. For records that go there, ``offset`` and ``timestamp`` are the letter's, and the
    partition is null if its topic has no such partition any more.
    """

    letters: KafkaSplitReader
    names: tuple[str, ...]
    """The columns of a batch, in order."""
    partitions: Mapping[str, int]
    """How many the topics of the input have."""

    def __call__(self, split: Mapping[str, Any], columns: frozenset[str]) -> Iterator[pa.RecordBatch]:
        """Yield the records to bring back. See :meth:`KafkaSplitReader.__call__`."""
        first = ranges_of(split)[0]
        wanted, before = Wanted.of_json(first["wanted"]), [Run.of_json(one) for one in first["before"]]
        for batch in self.letters(split, columns | set(NAMES)):
            times = batch.column("timestamp").view(pa.int64()).to_pylist()
            rows = []
            for row, time in zip(batch.to_pylist(), times, strict=True):
                headers = [(one["key"], one["value"]) for one in row["headers"] or ()]
                letter, written = Letter.of(headers), time // 1000
                if letter is None or wanted.drop or wanted.refuses(letter, written):
                    continue
                if not any(one.has(letter, written, row["partition"], row["offset"]) for one in before):
                    place = self._place(letter) if wanted.into == INPUT else _origin(letter)
                    rows.append(row | place | {"headers": _headers(headers, letter, written)})
            if rows:
                yield pa.RecordBatch.from_pylist(rows, _SCHEMA).select(list(self.names))

    def held_back(self) -> float:
        return self.letters.held_back()

    def _place(self, letter: Letter) -> dict[str, Any]:
        number, count = letter.partition, self.partitions.get(letter.topic, 0)
        return {"topic": letter.topic, "partition": number if number is not None and number < count else None}


def _origin(letter: Letter) -> dict[str, Any]:
    at = None if letter.timestamp is None else min(letter.timestamp, LAST_MS) * 1000
    return {"topic": letter.topic or None, "partition": letter.partition, "offset": letter.offset, "timestamp": at}


def _headers(
    headers: Sequence[tuple[str, bytes | None]], letter: Letter, written: int
) -> list[tuple[str, bytes | None]]:
    """Return those of the record, which stand before those of the letter, the number of attempts, and when the first
    letter was written."""
    first = written if letter.first_seen is None else letter.first_seen
    theirs = takewhile(lambda one: not one[0].startswith(PREFIX), headers)
    return [*theirs, (ATTEMPT, str(letter.attempt).encode()), (FIRST_SEEN, str(first).encode())]
