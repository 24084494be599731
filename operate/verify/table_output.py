"""A table that a job writes to."""

import json
from base64 import b64decode
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from struct import pack, unpack
from typing import Any, TypeAlias

from onceward.common.errors import ConfigurationError
from onceward.connectors.at_rest import TableAtRest
from onceward.operate.verify.external_sort import ExternalSort, Record, Side, digest_of
from onceward.operate.verify.history import Lane, PartitionEnd
from onceward.operate.verify.judge import AT_REST
from onceward.operate.verify.last_rows import LastRows, Rows
from onceward.operate.verify.quiescence import Look
from onceward.operate.verify.verdict import Property
from onceward.operate.verify.verifier import TOLD_EVERY, Progress

__all__ = ["ExpectedRows", "RowForm", "Table", "rows_of_json"]

ExpectedRows: TypeAlias = Callable[[str, bytes | None, bytes | None], Iterable[Mapping[str, Any]]]
"""(input topic, key, value) -> the required rows: column -> value."""

_LONGEST = 200
"""Characters of a row that people are shown."""


@dataclass(frozen=True, kw_only=True)
class RowForm:
    """Which columns count."""

    by: Sequence[str] = ()
    """Rows are compared by these columns; empty: by all."""
    key: Sequence[str] = ()
    """Of the rows with one key, the last one counts; empty: every row counts."""
    delete: str = ""
    """The last row of a key is deleted where this column, which the table does not have, is true."""


class Table:
    """A table of a system that can be read. See :class:`Output`."""

    # Rows have no order, and no row holds readers back.
    properties = AT_REST - {Property.ORDER, Property.NOTHING_OPEN}
    by_order = Property.NOTHING_LOST

    def __init__(self, opens: Callable[[], TableAtRest], form: RowForm, expected: ExpectedRows) -> None:
        """``opens`` returns the table as it is now. Raises ConfigurationError for columns that it does not have."""
        self._opens = opens
        self._form = form
        self._expected = expected
        self._table = opens()
        try:
            self._columns = self._compared()
        except BaseException:
            self.close()
            raise

    def look(self, job: str) -> Look:
        self.close()
        self._table = self._opens()
        return Look()

    def gaps(self) -> Sequence[str]:
        return ()

    def expected(self, topic: str, key: bytes | None, value: bytes | None) -> Iterable[Record]:
        for row in self._expected(topic, key, value):
            gone = bool(self._form.delete) and row.get(self._form.delete) is True
            record = self._record([row.get(name) for name in self._columns])
            yield (*record[:2], None) if gone else record

    def sort(self, directory: Path) -> ExternalSort:
        return (LastRows if self._form.key else Rows)(directory, [self._table.name])

    def read(self, ends: Sequence[PartitionEnd], sort: ExternalSort, progress: Progress) -> Mapping[int, Lane]:
        lane = Lane(self._table.name, -1)
        number = 0
        for number, row in enumerate(self._table.rows(self._columns), start=1):
            sort.add(Side.VISIBLE, self._record(row), lane=0, offset=number)
            if not number % TOLD_EVERY:
                progress("reading the table", number, 0)
        progress("reading the table", number, 0)
        return {0: lane}

    def texts(self, contents: Collection[str]) -> Mapping[str, str]:
        """Read the table again: a row is found by what it says."""
        found: dict[str, str] = {}
        for row in self._table.rows(self._columns):
            record = self._record(row)
            if (content := f"#{digest_of(record).hex()}") in contents:
                text = (record[2] or b"").decode()
                # what is cut must still differ from all others
                found[content] = "=" + (text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ... {content}")
        return found

    def close(self) -> None:
        self._table.close()

    def _compared(self) -> Sequence[str]:
        known = self._table.columns
        named = dict.fromkeys([*self._form.key, *self._form.by])
        if absent := [name for name in named if name not in known]:
            raise ConfigurationError(
                f"Table {self._table.name} has no column {', '.join(absent)}; it has {', '.join(known)}. Nothing was "
                "judged. Correct --by or --key."
            )
        return list(named) if self._form.by else list(known)

    def _record(self, row: Sequence[Any]) -> Record:
        words = {
            name: _word(_typed(value, self._table.columns[name]))
            for name, value in zip(self._columns, row, strict=True)
        }
        key = ", ".join(words[name] for name in self._form.key).encode() if self._form.key else None
        return self._table.name, key, ", ".join(f"{name}={word}" for name, word in words.items()).encode()


def rows_of_json(topic: str, key: bytes | None, value: bytes | None) -> Iterable[Mapping[str, Any]]:
    """Return the row of a record whose value is a JSON object: its members are columns."""
    row = None
    if value is not None:
        with suppress(ValueError):
            row = json.loads(value, parse_float=Decimal)
    if not isinstance(row, dict):
        raise ConfigurationError(
            f"A record of topic {topic} has no JSON object as its value: {value if value is None else value[:80]!r}. "
            "Nothing was judged. Give the rows that are expected with --expected-by MODULE:FUNCTION."
        )
    return [row]


def _typed(value: Any, kind: str) -> Any:
    """Return the value as a column of this type has it. Texts stand for what JSON has no form for."""
    with suppress(ValueError, ArithmeticError):
        match kind, value:
            case (("float" | "double"), (int() | float() | Decimal() | str())):
                number = float(value)
                return unpack("f", pack("f", number))[0] if kind == "float" else number
            case "decimal", str():
                return Decimal(value)
            case "binary", str():
                return b64decode(value, validate=True)
            case "timestamp", (str() | datetime()):
                at = datetime.fromisoformat(value) if isinstance(value, str) else value
                return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
            case "timestamp_ntz", str():
                return datetime.fromisoformat(value)
            case "date", str():
                return date.fromisoformat(value)
    return value


def _word(value: Any) -> str:
    """Return a text that equal values share, and only they: numbers of any type are equal if their values are."""
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float() | Decimal():
            return _number(value)
        case str():
            return json.dumps(value)
        case bytes() | bytearray() | memoryview():
            return f"x'{bytes(value).hex()}'"
        case datetime():
            return json.dumps((value.astimezone(UTC) if value.tzinfo is not None else value).isoformat(" "))
        case Mapping():
            # Spark leaves a null out of JSON
            members = {str(name): _word(one) for name, one in value.items() if one is not None}
            return "{" + ", ".join(f"{json.dumps(name)}: {word}" for name, word in sorted(members.items())) + "}"
        case list() | tuple():
            return f"[{', '.join(map(_word, value))}]"
    return json.dumps(str(value))


def _number(value: float | Decimal) -> str:
    exact = Decimal(repr(value)) if isinstance(value, float) else value
    if not exact.is_finite():
        return str(exact)
    text = format(exact, "f")
    whole = text.rstrip("0").rstrip(".") if "." in text else text
    return "0" if whole in ("", "-0", "-") else whole
