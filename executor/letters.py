"""Dead letters: what they are, why, and how many there may be.

Runs on executors: the standard library, and pyarrow where batches are made.
"""

import json
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING, Any, cast

from onceward.common.errors import ConfigurationError, OncewardError
from onceward.connectors.letter_counts import CLASSES, NEWEST, OTHERS, Place
from onceward.connectors.letters import ATTEMPT, FIRST_SEEN, PREFIX, named, said_in
from onceward.connectors.slots import Unfit, UnfitKind
from onceward.connectors.tasks import CheckpointTask

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "PASSING",
    "TRANSFORM",
    "DeadLetter",
    "LetterRefusedError",
    "Letters",
    "LettersTo",
    "Limits",
    "Page",
    "Reasons",
    "Retry",
    "Rules",
    "TooManyLettersError",
    "Why",
    "Window",
    "cut",
    "letter_refused",
    "without_records",
]

TRANSFORM = "transform"
"""What sets a record aside that no output refuses."""
_CONDITION = "condition"
"""The class of a letter that a DataFrame has marked."""
_DIGITS = 10
_MESSAGE = 1024
"""Bytes of a message that a letter keeps."""
_EXAMPLE = 200
"""Characters of a message that the job's own log and error keep: it may quote a record."""
_SIZE = f"{PREFIX}size"
_VALUE = 64 * 1024
"""Bytes that a letter keeps of a value that was too large for an output: it may be too large for the letters, too."""
_PLACE = Place._fields
_OF_KAFKA = frozenset({"key", "value", "headers", "topic", "partition", "timestamp"})


class DeadLetter(Exception):  # noqa: N818 - what it makes, not an error of the program
    """Raise it in a function on records or batches for a record that shall become a dead letter. The text is the
    reason."""


class Retry(Exception):  # noqa: N818 - what it asks for
    """Raise it in a function on records or batches for a cause that will pass: the checkpoint fails and its records are
    read again. Nothing becomes a dead letter.

    after: seconds before which nothing of them is read again, while the job's program runs.
    """

    def __init__(self, why: str = "", *, after: float = 0.0) -> None:
        """Raises ConfigurationError, which ends the job."""
        super().__init__(why)
        if isinstance(after, bool) or not isinstance(cast("object", after), int | float) or not 0 <= after < inf:
            raise ConfigurationError(
                f"Retry: after={after!r} is not a number of seconds. Nothing of this checkpoint becomes visible; its "
                "records stay unread. Give a number from 0, such as 30."
            )
        self.after = float(after)


class TooManyLettersError(OncewardError):
    """More records became dead letters than the limits permit."""


class LetterRefusedError(OncewardError):
    """The dead letters' sink refuses a letter, even without its record."""


PASSING = (Retry, OncewardError, OSError, MemoryError)
"""Exceptions that say nothing of a record: a service that is away is no reason to set its records aside."""


@dataclass(frozen=True)
class Limits:
    """When a job halts instead of writing more dead letters."""

    rate: float
    """Share of the last :attr:`WINDOW` records that may be letters."""
    total: int | None
    """Letters that the job may have; None = any number."""

    WINDOW = 10_000
    """Records."""
    LEAST = 20
    """Letters that a window may always have."""

    def excess(self, letters: int) -> str | None:
        """Return how ``letters`` of one job exceed :attr:`total`; None if they do not."""
        if self.total is None or letters <= self.total:
            return None
        return f"The job has {letters} dead letters, and total={self.total} permits no more"


_ENTRY = 500
"""Records that an entry of a window has at least, so that it stays small however small the batches are."""


class Window:
    """The last records, and how many of them became letters."""

    def __init__(self, limits: Limits, entries: Iterable[tuple[int, int]] = ()) -> None:
        self._limits = limits
        self._entries = deque(entries)
        self._records = sum(records for records, _ in self._entries)
        self._letters = sum(letters for _, letters in self._entries)

    @property
    def entries(self) -> Sequence[tuple[int, int]]:
        """Records and letters, oldest first."""
        return tuple(self._entries)

    def add(self, records: int, letters: int) -> None:
        """Add the newest ones, and forget those that came before the last :attr:`Limits.WINDOW` records."""
        last = self._entries[-1] if self._entries else (_ENTRY, 0)
        if last[0] < _ENTRY:
            self._entries[-1] = last[0] + records, last[1] + letters
        else:
            self._entries.append((records, letters))
        self._records += records
        self._letters += letters
        while self._records - self._entries[0][0] >= self._limits.WINDOW:
            records, letters = self._entries.popleft()
            self._records -= records
            self._letters -= letters

    def excess(self, records: int = 0, letters: int = 0) -> str | None:
        """Return how the share exceeds the limit, counting ``records`` and ``letters`` that are not yet added; None if
        it does not."""
        records, letters = self._records + records, self._letters + letters
        if letters <= max(self._limits.LEAST, self._limits.rate * records):
            return None
        return f"Of the last {records} records {letters} became dead letters; rate={self._limits.rate:.2%} permits less"


class Reasons:
    """Why records became letters: each kind, how many, one example, and where the newest were."""

    def __init__(self, counted: Mapping[str, Sequence[Any]] | None = None) -> None:
        self._counts: Counter[str] = Counter()
        self._examples: dict[str, str] = {}
        self._places: dict[str, deque[Place]] = {}
        for kind, (count, example, places) in (counted or {}).items():
            self._count(kind, count, example, [Place(*place) for place in places])

    def add(self, why: "Why", where: Place | str) -> None:
        """``where``: names the record, and shows none of it."""
        known = why.kind in self._counts or len(self._counts) < CLASSES
        places = [where] if isinstance(where, Place) else ()
        self._count(why.kind if known else OTHERS, 1, f"{cut(why.message, _EXAMPLE)} ({where})", places)

    def _count(self, kind: str, count: int, example: str, places: Sequence[Place]) -> None:
        self._counts[kind] += count
        self._examples.setdefault(kind, example)
        self._places.setdefault(kind, deque(maxlen=NEWEST)).extend(places)

    def __add__(self, other: "Reasons") -> "Reasons":
        both = Reasons(self.to_json())
        for kind, (count, example, places) in other.to_json().items():
            both._count(kind, count, example, places)
        return both

    def to_json(self) -> dict[str, list[Any]]:
        """The number of each kind, its example, and its newest places, the newest last."""
        return {
            kind: [count, self._examples[kind], [*self._places[kind]]] for kind, count in self._counts.most_common()
        }

    @property
    def newest(self) -> dict[str, tuple[int, Sequence[Place]]]:
        """How many of each, and the places of the newest, the newest first."""
        return {kind: (count, [*reversed(self._places[kind])]) for kind, count in self._counts.most_common()}

    @property
    def kinds(self) -> dict[str, int]:
        """How many of each, the commonest first, without examples: these may quote records, which no log has."""
        return dict(self._counts.most_common())

    def __str__(self) -> str:
        """The commonest one, and its example."""
        ((kind, count), *others) = self._counts.most_common() or [("nothing", 0)]
        more = f" and {sum(n for _, n in others)} for other reasons" if others else ""
        return f"{count} for {kind}{more}, for example {kind}: {self._examples.get(kind, '')}"


@dataclass(frozen=True)
class Why:
    """Why a record is a letter."""

    kind: str
    """The class of an exception, or an :class:`UnfitKind`."""
    message: str
    output: str = ""
    """The output that refuses the record; empty if the transform does."""

    @classmethod
    def of(cls, error: BaseException) -> "Why":
        return cls(type(error).__name__, str(error))


@dataclass(frozen=True)
class Rules:
    """What becomes a letter, of which job, and how much of it."""

    job: str
    limits: Limits
    on: frozenset[str]
    """:data:`TRANSFORM`, and kinds of :class:`UnfitKind`."""
    aliases: tuple[str, ...] = ()
    """Of :data:`ALIASES`."""

    @property
    def of_outputs(self) -> frozenset[str]:
        return self.on - {TRANSFORM}


@dataclass(frozen=True, kw_only=True)
class LettersTo:
    """Where the letters of a job go."""

    sink: str
    rules: Rules
    partitions: int | None
    """Of the letters' topic; None if it has none."""


class Letters:
    """The letters of one task so far in this checkpoint."""

    def __init__(self, to: LettersTo, task: CheckpointTask) -> None:
        self.to, self.task = to, task
        self._window = Window(to.rules.limits)
        self._letters = 0
        self.reasons = Reasons()

    def page(self, records: "pa.RecordBatch") -> "Page":
        return Page(self, records)

    def count(self, why: Why, where: Place | str, records: int, letters: int) -> None:
        """Count one more, the last of ``letters`` among ``records`` that are not yet added. Raises
        TooManyLettersError."""
        self._letters += 1
        self.reasons.add(why, where)
        excess = self._window.excess(records, letters) or self.to.rules.limits.excess(self._letters)
        if excess is not None:
            raise TooManyLettersError(too_many(excess, self.reasons))

    def add(self, records: int, letters: int) -> None:
        self._window.add(records, letters)


class Page:
    """The letters among the records of one batch."""

    def __init__(self, letters: Letters, records: "pa.RecordBatch") -> None:
        self._of, self._records = letters, records
        self._why: dict[int, Why] = {}
        self._marked: dict[int, Why] = {}
        self._made: dict[int, dict[str, Any]] = {}
        """What was made of a record that is not known itself."""

    @property
    def rows(self) -> frozenset[int]:
        """Those that go to no output: all but the marked ones, for which the outputs' conditions say it."""
        return frozenset(self._why)

    def mark(self, reasons: Mapping[int, str]) -> None:
        """Make the records in these rows letters, which a DataFrame has marked. The driver alone limits their number:
        it knows how many records were read."""
        self._marked |= {row: Why(_CONDITION, text) for row, text in reasons.items()}

    def add(self, row: int, why: Why, made: "Callable[[], dict[str, Any]] | None" = None) -> None:
        """Make the record in ``row`` a letter. ``made``: gives the columns that an output refuses. Raises
        TooManyLettersError."""
        if row in self._why:
            return
        self._why[row] = why
        if made is not None and "value" not in self._records.schema.names:
            self._made[row] = made()
        self._of.count(why, _place(self._records, row), self._records.num_rows, len(self._why))

    def close(self) -> "pa.RecordBatch | None":
        """Return the letters, in the order of their records: key, value and headers as they were, and why. None if
        there is none."""
        self._of.add(self._records.num_rows, len(self._why))
        for row, why in self._marked.items():
            if row not in self._why:
                self._of.reasons.add(why, _place(self._records, row))
        every = self._marked | self._why
        return self._written(every) if every else None

    def _written(self, every: "Mapping[int, Why]") -> "pa.RecordBatch":
        import pyarrow as pa

        rows = sorted(every)
        taken = self._records.take(pa.array(rows, pa.int64()))
        names = taken.schema.names

        def column(name: str) -> list[Any]:
            return taken.column(name).to_pylist() if name in names else [None] * len(rows)

        records = [
            _known(self._made[row]) if row in self._made else (key, value)
            for row, key, value in zip(rows, column("key"), column("value"), strict=True)
        ]
        keys, values, headers = [], [], []
        for row, (key, value), theirs in zip(rows, records, column("headers"), strict=True):
            own, kept = _parted(theirs or ())
            why, said = every[row], self._said(row, every[row]) | kept
            whole = value.encode() if isinstance(value, str) else value
            if why.kind == UnfitKind.TOO_LARGE and whole is not None and len(whole) > _VALUE:
                said["size"] = str(len(whole))
                whole = whole[:_VALUE]
            keys.append(key.encode() if isinstance(key, str) else key)
            values.append(whole)
            names_of = named(said, self._of.to.rules.aliases)
            ours = [{"key": name, "value": text.encode()} for name, text in names_of.items()]
            headers.append([*own, *ours])
        columns = {
            "key": pa.array(keys, pa.binary()),
            "value": pa.array(values, pa.binary()),
            "headers": pa.array(headers, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        }
        if (partitions := self._of.to.partitions) is not None and "partition" in names:
            fits = [one if one is not None and one < partitions else None for one in column("partition")]
            columns["partition"] = pa.array(fits, pa.int32())
        return pa.RecordBatch.from_pydict(columns)

    def _said(self, row: int, why: Why) -> dict[str, str]:
        """The headers, in order. The same again when the record is written again."""
        batch, task = self._records, self._of.task
        said = {
            name: str(value.as_py())
            for name in _PLACE
            if name in batch.schema.names and (value := batch.column(name)[row]).is_valid
        }
        if "timestamp" in batch.schema.names and (time := batch.column("timestamp")[row]).is_valid:
            said["timestamp"] = str(time.value // 1000)
        said["job"] = self._of.to.rules.job
        if why.output:
            said["output"] = why.output
        said["stage"] = "output" if why.output else TRANSFORM
        if task.checkpoint:  # a staying task learns it too late
            said["checkpoint"] = str(task.checkpoint)
        said |= {"class": why.kind, "message": cut(why.message, _MESSAGE), "attempt": "1"}
        return said


def _known(made: Mapping[str, Any]) -> tuple[Any, Any]:
    """The key and the value of a letter whose record is not known: of what was made of it."""
    if "value" in made and made.keys() <= _OF_KAFKA:
        return made.get("key"), made["value"]
    return None, json.dumps(made, default=str, ensure_ascii=False)


def without_records(letters: "pa.RecordBatch", rows: Collection[int]) -> "pa.RecordBatch":
    """Return ``letters``, those in ``rows`` without key, value, partition and the record's own headers: they still say
    where it was read, and why it is a letter."""
    import pyarrow as pa

    made = letters.to_pylist()
    for row in rows:
        letter = made[row]
        ours = [one for one in letter["headers"] or () if one["key"].startswith(PREFIX)]
        if not any(one["key"] == _SIZE for one in ours):
            ours.append({"key": _SIZE, "value": str(len(letter["value"] or b"")).encode()})
        made[row] = {"headers": ours}
    return pa.RecordBatch.from_pylist(made, letters.schema)


def letter_refused(letters: "pa.RecordBatch", unfit: Unfit) -> str:
    """Return the text of a halt."""
    where = _where(*map(_of_headers(letters, unfit.row).get, _PLACE))
    return (
        f"The dead letters' sink refuses a letter, even without its record: {unfit.reason} ({unfit.kind}). The record "
        f"is {where}. The checkpoint is aborted: "
        "nothing of it becomes visible, and its records stay unread. Correct the topic or table of the letters, and "
        "start the job again"
    )


def _of_headers(letters: "pa.RecordBatch", row: int) -> dict[str, str]:
    return said_in((one["key"], one["value"]) for one in letters.column("headers")[row].as_py() or ())


def _parted(headers: Sequence[Mapping[str, Any]]) -> tuple[Sequence[Mapping[str, Any]], dict[str, str]]:
    """Part the headers of a record, which may be a letter that has come back: its own, and what its next letter says of
    the former ones."""
    own = [one for one in headers if not one["key"].startswith(PREFIX)]
    if len(own) == len(headers):
        return own, {}
    former = {one["key"]: (one["value"] or b"").decode(errors="replace") for one in headers}
    said = {"first_seen": former[FIRST_SEEN]} if FIRST_SEEN in former else {}
    if (attempt := former.get(ATTEMPT, "")).isascii() and attempt.isdigit() and len(attempt) <= _DIGITS:
        said["attempt"] = str(int(attempt) + 1)
    return own, said


def too_many(excess: str, reasons: Reasons) -> str:
    """Return the text of a halt."""
    return (
        f"{excess}: {reasons}. The checkpoint is aborted: nothing of it becomes visible, and its records stay unread. "
        "Correct the function or the output, or raise the limits of dead_letters=, and start the job again"
    )


def _place(batch: "pa.RecordBatch", row: int) -> Place | str:
    if not {*_PLACE} <= {*batch.schema.names}:
        return f"record {row} of a batch"
    return _where(*(batch.column(name)[row].as_py() for name in _PLACE))


def _where(topic: object, partition: object, offset: object) -> Place | str:
    return Place.of(topic, partition, offset) or f"{topic} {partition}, offset {offset}"


def cut(text: str, limit: int) -> str:
    """``text`` in at most ``limit`` bytes of UTF-8."""
    return text.encode(errors="replace")[:limit].decode(errors="ignore")
