"""The columns of a DataFrame that this sink understands: those of Spark's Kafka sink, and a timestamp.

``value`` (string or binary) is required; ``key`` (string or binary), ``topic`` (string), ``partition`` (int),
``headers`` (array<struct<key:string,value:binary>>) and ``timestamp`` (timestamp) are optional; other columns are
ignored, as in Spark. Text is encoded as UTF-8.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from onceward.common.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["column_problems", "project"]

_HEADERS = "array<struct<key:string,value:binary>>"
_TYPES: dict[str, tuple[str, ...]] = {
    "key": ("string", "binary"),
    "value": ("string", "binary"),
    "headers": (_HEADERS,),
    "topic": ("string",),
    "partition": ("int",),
    "timestamp": ("timestamp",),
}
_FIXES: dict[str, str] = {
    "key": "cast it, for example df.withColumn('key', col('key').cast('string'))",
    "value": "build it, for example with to_json(struct(...)) as value",
    "headers": f"build {_HEADERS}, values cast to binary",
    "topic": "cast it to string",
    "partition": "cast it to int",
    "timestamp": "cast it to timestamp",
}


def column_problems(columns: Sequence[tuple[str, str]], *, routed: bool) -> list[str]:
    """Describe every problem of ``columns`` (name, Spark type as text). ``routed``: ``topic`` is required."""
    return list(_problems(columns, routed))


def _problems(columns: Sequence[tuple[str, str]], routed: bool) -> Iterator[str]:
    for wanted, types in _TYPES.items():
        found = [(name, kind) for name, kind in columns if name.lower() == wanted]
        if len(found) > 1:
            yield f"{wanted}: there are {len(found)} columns of that name; drop or rename all but one"
        elif not found and wanted == "value":
            yield f"value: the column is missing; {_FIXES['value']}"
        elif not found and wanted == "topic" and routed:
            yield "topic: the column is missing; add it, or give the sink topic= for all records"
        elif found and wanted == "topic" and not routed:
            continue  # topic= overrides the column, whatever its type
        elif found and _plain(found[0][1]) not in types:
            yield f"{wanted}: is {found[0][1]}, must be {' or '.join(types)}; {_FIXES[wanted]}"


def _plain(kind: str) -> str:
    """Strip the collation, which does not affect the bytes written."""
    return "string" if kind.startswith("string collate") else kind


def project(df: "DataFrame", *, routed: bool) -> "DataFrame":
    """Select the columns that the writer takes, with text as binary. Adds only a projection to the plan.

    Raises ConfigurationError listing every problem.
    """
    columns = [(field.name, field.dataType.simpleString()) for field in df.schema.fields]
    problems = column_problems(columns, routed=routed)
    if problems:
        raise ConfigurationError(
            "The records cannot be written to Kafka as they are; nothing was read or written. Correct these columns:\n"
            + "\n".join(f"  - {problem}" for problem in problems)
        )
    names = {name.lower(): name for name, _ in columns}
    wanted = [name for name in _TYPES if name in names and (routed or name != "topic")]
    return df.selectExpr(*(_expression(names[name], name) for name in wanted))


def _expression(column: str, name: str) -> str:
    taken = f"cast(`{column}` as binary)" if name in ("key", "value") else f"`{column}`"
    return f"{taken} as `{name}`"
