"""Types as Spark writes them, in its JSON and as text: ``{"type": "array", "elementType": "integer", ...}`` is
``array<int>``."""

import re
from collections.abc import Mapping
from typing import Any

from onceward.sinks.lake.driver.columns import plain

__all__ = ["parse_type", "spark_type"]

# Spark's names of the types that its JSON calls otherwise.
_NAMES = {"byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint"}
_JSON_NAMES = {spark: inside for inside, spark in _NAMES.items()}
_PLAIN_TYPES = frozenset(
    {
        *("tinyint", "smallint", "int", "bigint", "float", "double", "boolean", "string", "binary"),
        *("date", "timestamp", "timestamp_ntz"),
    }
)
_NAME = re.compile(r"[a-z_]+(\([0-9]+,[0-9]+\))?")


def spark_type(kind: Any) -> str:
    """Return a type as Spark writes it: ``kind`` is in Spark's JSON."""
    if isinstance(kind, str):
        return _NAMES.get(kind, kind)
    match kind["type"]:
        case "array":
            return f"array<{spark_type(kind['elementType'])}>"
        case "map":
            return f"map<{spark_type(kind['keyType'])},{spark_type(kind['valueType'])}>"
    inside = (f"{one['name']}:{spark_type(one['type'])}" for one in kind["fields"])
    return f"struct<{','.join(inside)}>"


def parse_type(text: str) -> Any:
    """Return a type in Spark's JSON: ``text`` is as Spark writes it, such as ``array<int>``. Raises ValueError."""
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
        return _JSON_NAMES.get(word, word), rest
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
