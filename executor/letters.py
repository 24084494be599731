"""Dead letters: the records for which a function on batches raises, set aside by the task that runs it.

Runs on executors: the standard library, and pyarrow where batches are made. The search for a record that raises is the
bisection of git, on one batch: https://git-scm.com/docs/git-bisect.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from onceward.common.errors import ConfigurationError, OncewardError
from onceward.connectors.letters import PREFIX
from onceward.connectors.tasks import CheckpointTask

if TYPE_CHECKING:
    import pyarrow as pa

    Batches: TypeAlias = Iterator[pa.RecordBatch]
    Routed: TypeAlias = Iterator[tuple[str, pa.RecordBatch]]

__all__ = [
    "DeadLetter",
    "Limits",
    "Reasons",
    "Retry",
    "SettingAside",
    "TooManyLettersError",
    "Window",
    "per_record",
]

_MESSAGE = 1024
"""Bytes of an exception's message that a letter keeps."""
_EXAMPLE = 200
"""Characters of a message that the job's own log and error keep: it may quote a record."""
_KINDS = 20
"""Reasons that are counted apart."""


class DeadLetter(Exception):  # noqa: N818 - what it makes, not an error of the program
    """Raise it in a function on records or batches for a record that shall become a dead letter. The text is the
    reason."""


class Retry(Exception):  # noqa: N818 - what it asks for
    """Raise it in a function on records or batches for a cause that will pass: the checkpoint fails and its records are
    read again. Nothing becomes a dead letter."""


class TooManyLettersError(OncewardError):
    """More records became dead letters than the limits permit."""


_PASSING = (Retry, OncewardError, OSError, MemoryError)
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
    """Why records became letters: each kind, how many, and one example."""

    def __init__(self, counted: Mapping[str, Sequence[Any]] | None = None) -> None:
        self._counts: Counter[str] = Counter()
        self._examples: dict[str, str] = {}
        for kind, (count, example) in (counted or {}).items():
            self._count(kind, count, example)

    def add(self, error: BaseException, where: str) -> None:
        """``where``: names the record, and shows none of it."""
        kind = type(error).__name__
        known = kind in self._counts or len(self._counts) < _KINDS
        self._count(kind if known else "others", 1, f"{_cut(str(error), _EXAMPLE)} ({where})")

    def tally(self, letters: "pa.RecordBatch") -> None:
        """Add letters that Spark has made, by their headers."""
        if not letters.num_rows:
            return
        headers = letters.column("headers")[0].as_py() or ()
        said = {one["key"].removeprefix(PREFIX): (one["value"] or b"").decode(errors="replace") for one in headers}
        where = f"{said.get('topic')} {said.get('partition')}, offset {said.get('offset')}"
        kind = said.get("class", "unknown")
        self._count(kind, letters.num_rows, f"{_cut(said.get('message', ''), _EXAMPLE)} ({where})")

    def _count(self, kind: str, count: int, example: str) -> None:
        self._counts[kind] += count
        self._examples.setdefault(kind, example)

    def __add__(self, other: "Reasons") -> "Reasons":
        both = Reasons(self.to_json())
        for kind, (count, example) in other.to_json().items():
            both._count(kind, count, example)
        return both

    def to_json(self) -> dict[str, list[Any]]:
        return {kind: [count, self._examples[kind]] for kind, count in self._counts.most_common()}

    @property
    def kinds(self) -> str:
        """How many of each, without examples: these may quote records, which no log has."""
        return ", ".join(f"{count} {kind}" for kind, count in self._counts.most_common())

    def __str__(self) -> str:
        """The commonest one, and its example."""
        ((kind, count), *others) = self._counts.most_common() or [("nothing", 0)]
        more = f" and {sum(n for _, n in others)} for other reasons" if others else ""
        return f"{count} for {kind}{more}, for example {kind}: {self._examples.get(kind, '')}"


@dataclass(frozen=True, kw_only=True)
class SettingAside:
    """Runs a function on one batch at a time, and sends the records for which it raises to the dead letters' sink.

    A function that keeps a state between batches cannot be run so: what it has taken of earlier ones would be lost.
    """

    function: Callable[..., Any]
    route: Callable[[Callable[..., Any]], "Callable[[Batches], Routed]"]
    """Makes a router of the function."""
    sink: str
    job: str
    limits: Limits
    partitions: int | None
    """Of the dead letters' topic; None if it has none."""

    def of(self, task: CheckpointTask) -> "_TaskLetters":
        """Return the router of one task."""
        return _TaskLetters(self, task)


class _TaskLetters:
    """A router, and what it has set aside so far in this checkpoint."""

    def __init__(self, rule: SettingAside, task: CheckpointTask) -> None:
        self._rule, self._task = rule, task
        self._route = rule.route(rule.function)
        self._window = Window(rule.limits)
        self._letters = 0
        self.reasons = Reasons()

    def __call__(self, batches: "Batches") -> "Routed":
        for batch in batches:
            letters: list[tuple[int, Exception]] = []
            yield from self._made(batch, letters)
            if letters:
                yield self._rule.sink, self._written(batch, letters)
            self._window.add(batch.num_rows, len(letters))

    def _made(self, batch: "pa.RecordBatch", letters: list[tuple[int, Exception]]) -> "Routed":
        """Yield what the function makes of the records for which it does not raise; add the others to ``letters``."""
        if isinstance(self._rule.function, PerRecord):

            def refused(row: int, error: Exception) -> None:
                self._add(batch, letters, row, error)

            yield from list(self._rule.route(self._rule.function.sparing(refused))(iter([batch])))
            return
        start, end = 0, batch.num_rows
        while start < end:
            made, error = self._tried(batch, start, end)
            yield from made
            if error is None:
                return
            low, high, tried = start, end, (start, end)
            while high - low > 1:  # one of these records is the first that raises
                middle = (low + high) // 2
                made, failed = self._tried(batch, low, middle)
                yield from made
                if failed is None:
                    low = middle
                else:
                    high, error, tried = middle, failed, (low, middle)
            if tried != (low, high):
                made, failed = self._tried(batch, low, high)
                yield from made
                error = failed
            if error is not None:  # else it raises only beside other records
                self._add(batch, letters, low, error)
            start = high

    def _tried(
        self, batch: "pa.RecordBatch", start: int, end: int
    ) -> "tuple[Sequence[tuple[str, pa.RecordBatch]], Exception | None]":
        """Run the function on some records: what it makes, or what it raises."""
        some = batch if end - start == batch.num_rows else batch.slice(start, end - start)
        try:
            return list(self._route(iter([some]))), None
        except _PASSING:
            raise
        except Exception as error:  # noqa: BLE001 - what a function raises
            return (), error

    def _add(self, batch: "pa.RecordBatch", letters: list[tuple[int, Exception]], row: int, error: Exception) -> None:
        """Raises TooManyLettersError."""
        letters.append((row, error))
        self._letters += 1
        self.reasons.add(error, _place(batch, row))
        excess = self._window.excess(batch.num_rows, len(letters))
        excess = excess or self._rule.limits.excess(self._letters)
        if excess is not None:
            raise TooManyLettersError(too_many(excess, self.reasons))

    def _written(self, batch: "pa.RecordBatch", letters: Sequence[tuple[int, Exception]]) -> "pa.RecordBatch":
        """Return the letters: key, value and headers as they were, and why."""
        import pyarrow as pa

        taken = batch.take(pa.array([row for row, _ in letters], pa.int64()))
        names = taken.schema.names
        count = len(letters)

        def column(name: str, kind: "pa.DataType") -> "pa.Array":
            return taken.column(name) if name in names else pa.nulls(count, kind)

        headers = [
            [*(theirs or ()), *({"key": PREFIX + name, "value": text.encode()} for name, text in why.items())]
            for theirs, why in zip(
                column("headers", pa.null()).to_pylist(),
                (self._why(batch, row, error) for row, error in letters),
                strict=True,
            )
        ]
        columns = {
            "key": column("key", pa.binary()),
            "value": column("value", pa.binary()),
            "headers": pa.array(headers, pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))),
        }
        if self._rule.partitions is not None and "partition" in names:
            fits = [one if one < self._rule.partitions else None for one in taken.column("partition").to_pylist()]
            columns["partition"] = pa.array(fits, pa.int32())
        return pa.RecordBatch.from_pydict(columns)

    def _why(self, batch: "pa.RecordBatch", row: int, error: Exception) -> dict[str, str]:
        """The headers, in order. The same again when the record is written again."""
        said = {
            name: str(batch.column(name)[row].as_py())
            for name in ("topic", "partition", "offset")
            if name in batch.schema.names
        }
        if "timestamp" in batch.schema.names and (time := batch.column("timestamp")[row]).is_valid:
            said["timestamp"] = str(time.value // 1000)
        said |= {"job": self._rule.job, "stage": "transform"}
        if self._task.checkpoint:  # a staying task learns it too late
            said["checkpoint"] = str(self._task.checkpoint)
        said |= {"class": type(error).__name__, "message": _cut(str(error), _MESSAGE), "attempt": "1"}
        return said


def too_many(excess: str, reasons: Reasons) -> str:
    """Return the text of a halt."""
    return (
        f"{excess}: {reasons}. The checkpoint is aborted: nothing of it becomes visible, and its records stay unread. "
        "Correct the function, or raise the limits of dead_letters=, and start the job again"
    )


class PerRecord:
    """See :func:`per_record`."""

    def __init__(self, function: Callable[[dict[str, Any]], Any], schema: "pa.Schema | None") -> None:
        self._function = function
        self._schema = schema

    def __call__(self, batches: "Batches") -> Iterator[Any]:
        def refused(row: int, error: Exception) -> None:
            raise error

        return self.sparing(refused)(batches)

    def sparing(self, refused: Callable[[int, Exception], object]) -> "Callable[[Batches], Iterator[Any]]":
        """Return a function on batches that hands what the function raises, with the record's row in its batch, to
        ``refused``."""

        def each(batches: "Batches") -> Iterator[Any]:
            for batch in batches:
                rows: dict[str | None, list[dict[str, Any]]] = {}
                for number, record in enumerate(batch.to_pylist()):
                    try:
                        for name, row in _rows(self._function(record)):
                            rows.setdefault(name, []).append(row)
                    except _PASSING:
                        raise
                    except Exception as error:  # noqa: BLE001 - what a function raises
                        refused(number, error)
                for name, some in rows.items():
                    made = _batch(some, self._schema)
                    yield made if name is None else (name, made)

        return each


def per_record(
    function: Callable[[dict[str, Any]], Any], *, schema: "pa.Schema | None" = None
) -> "Callable[[Batches], Iterator[Any]]":
    """Make a function on batches, for ``transform_batches=``, of a function on one record.

    :param function: gets the columns of a record by name, such as ``{"key": b"1", "value": b"{}", "offset": 7, ...}``.
        Returns the columns to write, None to write nothing, or a list of several; with several outputs, each as a pair
        of the output's name and the columns.
    :param schema: of what it returns; without one, pyarrow infers the types of each batch.
    """
    return PerRecord(function, schema)


def _rows(made: Any) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """What a function on one record returned: names of outputs, if it gave them, and columns."""
    for one in made if isinstance(made, list) else [made]:
        match one:
            case None:
                pass
            case dict():
                yield None, one
            case (str(name), dict(row)):
                yield name, row
            case _:
                raise ConfigurationError(
                    f"per_record: the function returned {type(one).__name__}. Nothing of this checkpoint becomes "
                    "visible; its records stay unread. Return a dict of columns, None, or a list of dicts; with "
                    "several outputs, pairs of a name and a dict."
                )


def _batch(rows: Sequence[dict[str, Any]], schema: "pa.Schema | None") -> "pa.RecordBatch":
    import pyarrow as pa

    if schema is not None:
        return pa.RecordBatch.from_pylist(list(rows), schema)
    names = dict.fromkeys(name for row in rows for name in row)
    try:
        return pa.RecordBatch.from_pydict({name: [row.get(name) for row in rows] for name in names})
    except pa.ArrowException as error:
        raise ConfigurationError(
            f"per_record: the function returned columns without a common type: {_cut(str(error), _EXAMPLE)}. Nothing "
            "of this checkpoint becomes visible; its records stay unread. Give per_record a schema=."
        ) from error


def _place(batch: "pa.RecordBatch", row: int) -> str:
    names = batch.schema.names
    if not {"topic", "partition", "offset"} <= set(names):
        return f"record {row} of a batch"
    topic, partition, offset = (batch.column(name)[row].as_py() for name in ("topic", "partition", "offset"))
    return f"{topic} {partition}, offset {offset}"


def _cut(text: str, limit: int) -> str:
    """``text`` in at most ``limit`` bytes of UTF-8."""
    return text.encode(errors="replace")[:limit].decode(errors="ignore")
