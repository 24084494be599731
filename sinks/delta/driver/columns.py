"""Types of columns as a Delta table's log writes them, and as Spark does."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from onceward.common.errors import ConfigurationError
from onceward.connectors.interfaces import Chosen
from onceward.sinks.lake.driver.columns import Column, choose_columns, plain

__all__ = ["choose", "delta_type", "new_fields", "spark_type"]

# Spark's names of the types that a table's log calls otherwise.
_NAMES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}
_LOG_NAMES = {spark: log for log, spark in _NAMES.items()}
_PLAIN_TYPES = frozenset(
    {
        *("tinyint", "smallint", "int", "bigint", "float", "double", "boolean", "string", "binary"),
        *("date", "timestamp", "timestamp_ntz"),
    }
)
_NAME = re.compile(r"[a-z_]+(\([0-9]+,[0-9]+\))?")


def new_fields(
    given: Sequence[tuple[str, str]], fields: Sequence[Mapping[str, Any]], table: str
) -> Sequence[Mapping[str, Any]]:
    """Return the columns of records that a table lacks, in the form of its log. Raises ConfigurationError for a type
    that a table cannot have."""
    known = {field["name"].lower() for field in fields}
    found = []
    for name, kind in given:
        if name.lower() not in known:
            try:
                found.append({"name": name, "type": delta_type(kind), "nullable": True, "metadata": {}})
            except ValueError as error:
                raise ConfigurationError(
                    f"Column {name} cannot be added to the Delta table {table}: {error}. Nothing was read or written. "
                    "Cast it to another type, or leave it out."
                ) from None
    return found


def choose(given: Sequence[tuple[str, str]], fields: Sequence[Mapping[str, Any]], table: str) -> Sequence[Chosen]:
    """Choose the columns of the table that the records have, under the table's names. ``fields``: of the table's log.

    Raises ConfigurationError listing every problem.
    """
    columns = [Column(field["name"], spark_type(field["type"]), nullable=field["nullable"]) for field in fields]
    return choose_columns(given, columns, f"Delta table {table}")


def spark_type(kind: Any) -> str:
    """Return a type as Spark writes it: ``kind`` is as in the table's log."""
    if isinstance(kind, str):
        return _NAMES.get(kind, kind)
    match kind["type"]:
        case "array":
            return f"array<{spark_type(kind['elementType'])}>"
        case "map":
            return f"map<{spark_type(kind['keyType'])},{spark_type(kind['valueType'])}>"
    inside = (f"{one['name']}:{spark_type(one['type'])}" for one in kind["fields"])
    return f"struct<{','.join(inside)}>"


def delta_type(text: str) -> Any:
    """Return a type as a table's log writes it: ``text`` is as Spark writes it. Raises ValueError."""
    kind, rest = _parsed(text)
    if rest:
        raise ValueError(f"{text} is no type of a table")
    return kind


def _parsed(text: str) -> tuple[Any, str]:
    """The type at the beginning of ``text``, and what follows it."""
    name = _NAME.match(plain(text))
    word = name[0] if name else ""
    rest = plain(text)[len(word) :]
    if word in _PLAIN_TYPES or word.startswith("decimal("):
        return _LOG_NAMES.get(word, word), rest
    if word == "array" and rest.startswith("<"):
        element, rest = _parsed(rest[1:])
        return {"type": "array", "elementType": element, "containsNull": True}, _after(">", rest)
    if word == "map" and rest.startswith("<"):
        key, rest = _parsed(rest[1:])
        value, rest = _parsed(_after(",", rest))
        return {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}, _after(">", rest)
    if word == "struct" and rest.startswith("<"):
        fields: list[Mapping[str, Any]] = []
        while not fields or rest.startswith(","):
            member, _, rest = rest[1:].partition(":")
            kind, rest = _parsed(rest)
            fields.append({"name": member, "type": kind, "nullable": True, "metadata": {}})
        return {"type": "struct", "fields": fields}, _after(">", rest)
    raise ValueError(f"{text} is no type of a table")


def _after(sign: str, text: str) -> str:
    if not text.startswith(sign):
        raise ValueError(f"{text!r} should begin with {sign!r}")
    return text[1:]
