"""A source as its drivers use it, without Spark: all that the promises call of a source is here."""

import json
import pickle
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from types import TracebackType

import pyarrow as pa

from onceward.connectors.interfaces import JobContext, Plan, Severity, Source
from onceward.dev.promises.checking import broken, eventually
from onceward.protocol.values import Document, JobName, JsonObject

__all__ = ["Run", "Runs", "SourceCase", "columns_of", "from_json", "values_of_batch"]


def values_of_batch(batch: pa.RecordBatch) -> Sequence[bytes]:
    """The column ``value``."""
    values: Sequence[bytes] = batch.column("value").to_pylist()
    return values


@dataclass(frozen=True, kw_only=True)
class SourceCase:
    """A source to check, and its input, which is empty. Each promise needs a case of its own."""

    source: Callable[[], Source]
    """Makes the source as a program would, again and again. It begins at the start of its input, and has no end."""
    add: Callable[[Sequence[bytes]], object]
    """Adds records with these values to the input."""
    remove: Callable[[], object]
    """Makes all that was added unreadable, as by a loss or an expiry."""
    bounded: Callable[[], Source] | None = None
    """Makes the same source with an end: the end that the input has when it is resolved. None: it has no such form, and
    what is promised of that is not checked."""
    values: Callable[[pa.RecordBatch], Sequence[bytes]] = values_of_batch
    """Returns the values of a batch that was read."""
    within: float = 30.0
    """Seconds after which a plan has what was added."""


class Runs:
    """The processes of a case: one driver after the other. Closed together."""

    def __init__(self, case: SourceCase) -> None:
        self.case = case
        self._job = JobName(f"promise-{secrets.token_hex(4)}")
        self._opened = ExitStack()
        self._added = 0

    def __enter__(self) -> "Runs":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    def add(self, records: int) -> list[bytes]:
        """Add records, each with a value of its own. Return the values."""
        values = [b"record %d" % number for number in range(self._added, self._added + records)]
        self._added += records
        self.case.add(values)
        return values

    def run(self, make: Callable[[], Source] | None = None) -> "Run":
        """Open a source as a driver does."""
        run = Run(self.case, self._job, (make or self.case.source)())
        self._opened.callback(run.close)
        return run


class Run:
    """A source in the hands of one driver."""

    def __init__(self, case: SourceCase, job: JobName, source: Source) -> None:
        self.source, self._case = source, case
        source.open(
            JobContext(job=job, checkpoint_timeout=timedelta(minutes=2), checkpoint_interval=timedelta(seconds=1))
        )
        self._open = True
        errors = [found for found in source.preflight() if found.severity is Severity.ERROR]
        if errors:
            broken(f"The preflight refuses this case: {'; '.join(f'{one.subject}: {one.message}' for one in errors)}")

    def close(self) -> None:
        if self._open:
            self._open = False
            self.source.close()

    def start(self) -> Document:
        """Resolve the start, and begin there."""
        return self.begin(self.source.resolve())

    def begin(self, positions: Document) -> Document:
        """Begin at positions, as they are stored."""
        stored = from_json(positions)
        self.source.restore(stored)
        return stored

    def read(self, splits: Sequence[JsonObject], columns: frozenset[str] | None = None) -> list[bytes]:
        """Read splits with copies of the reader, as tasks do; return the values in the order of the splits."""
        return [value for batch in self.batches(splits, columns) for value in self._case.values(batch)]

    def batches(self, splits: Sequence[JsonObject], columns: frozenset[str] | None = None) -> Iterator[pa.RecordBatch]:
        used = frozenset(columns_of(self.source.schema)) if columns is None else columns
        for split in splits:
            reader = pickle.loads(pickle.dumps(self.source.read()))
            yield from reader(json.loads(json.dumps(split)), used)

    def after(self, plan: Plan) -> Document:
        """The positions after ``plan`` was read, as they are stored."""
        return from_json(self.source.snapshot(plan))

    def plan(self, base: Document, records: int) -> Plan:
        """Plan until there are ``records`` at least, or nothing more comes."""
        plans: list[Plan] = []

        def enough() -> bool:
            plans.append(self.source.plan(base))
            return plans[-1].records >= records

        eventually(enough, True, self._case.within)
        return plans[-1]

    def reads(self, base: Document, wanted: Sequence[bytes], *, when: str) -> Document:
        """Require that the plans from ``base`` on read exactly ``wanted``, in any order. Return the positions then."""
        found: list[bytes] = []

        def more() -> bool:
            nonlocal base
            plan = self.source.plan(base)
            values = self.read(plan.splits)
            if len(values) > plan.records:
                broken(f"A plan of at most {plan.records} records has {len(values)}.")
            found.extend(values)
            base = self.after(plan)
            return len(found) >= len(wanted)

        eventually(more, True, self._case.within)
        more()  # what is read too often, or too much, comes now at the latest
        if sorted(found) != sorted(wanted):
            missing, extra = _differences(wanted, found)
            broken(f"Of {len(wanted)} records, {missing} are missing, and {extra} are read besides: {when}.")
        return base


def _differences(wanted: Sequence[bytes], found: Sequence[bytes]) -> tuple[list[bytes], list[bytes]]:
    missing, extra = list(wanted), []
    for value in found:
        if value in missing:
            missing.remove(value)
        else:
            extra.append(value)
    return missing[:5], extra[:5]


def from_json(document: Document) -> Document:
    """The document as another process reads it from a store."""
    return replace(document, body=json.loads(json.dumps(document.body)))


def columns_of(ddl: str) -> list[str]:
    """The names in a Spark DDL string: ``a int, b struct<c: int, d: int>`` has a and b."""
    depth, columns = 0, [""]
    for letter in ddl:
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and not depth:
            columns.append("")
        else:
            columns[-1] += letter
    return [column.split()[0].strip("`:") for column in columns if column.strip()]
