"""The columns of a schema, where Spark need not be asked: its SQL takes a second to load."""

import re
from collections.abc import Sequence

__all__ = ["column_names", "quoted", "simple_columns"]

_ATOM = "binary|boolean|string|int|bigint|float|double|date|timestamp"
_STRUCT = rf"array<struct<(?:\w+: ?(?:{_ATOM})(?:, ?|(?=>)))+>>"
_COLUMN = re.compile(rf"(\w+) ({_ATOM}|{_STRUCT})(?:, |$)")


def simple_columns(schema: str) -> dict[str, str] | None:
    """Return the names and types of a DDL string, types as ``DataType.simpleString`` writes them. None if it has more
    than names and Spark's own names of types."""
    found, end = {}, 0
    while end < len(schema):
        column = _COLUMN.match(schema, end)
        if column is None or column[1] in found:
            return None
        found[column[1]] = column[2].replace(" ", "")
        end = column.end()
    return found or None


def quoted(name: str) -> str:
    """Return a column's name as Spark's SQL takes it."""
    return f"`{name.replace('`', '``')}`"


def column_names(schema: str) -> Sequence[str]:
    """Return the names of the columns of a DDL string."""
    known = simple_columns(schema)
    if known is not None:
        return list(known)
    from pyspark.sql.types import StructType

    parsed = StructType.fromDDL(schema)
    assert isinstance(parsed, StructType)
    return parsed.names
