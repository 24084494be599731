"""The columns of a DataFrame that this sink understands: those of Spark's Kafka sink, and a timestamp.

``value`` (string or binary) is required; ``key`` (string or binary), ``topic`` (string), ``partition`` (int),
``headers`` (array<struct<key:string,value:binary>>) and ``timestamp`` (timestamp) are optional; other columns are
ignored, as in Spark. Text is encoded as UTF-8.
"""

from collections.abc import Iterator, Sequence

from onceward.common.errors import ConfigurationError
from onceward.connectors.interfaces import Chosen

__all__ = ["choose", "column_problems"]

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


def choose(columns: Sequence[tuple[str, str]], *, routed: bool) -> Sequence[Chosen]:
    """Choose the columns that the writer takes. Raises ConfigurationError listing every problem."""
    problems = column_problems(columns, routed=routed)
    if problems:
        raise ConfigurationError(
            "The records cannot be written to Kafka as they are; nothing was read or written. Correct these columns:\n"
            + "\n".join(f"  - {problem}" for problem in problems)
        )
    given = {name.lower(): (name, kind) for name, kind in columns}
    wanted = [name for name in _TYPES if name in given and (routed or name != "topic")]
    return [Chosen(column=given[name][0], name=name, cast=_cast(name, given[name][1])) for name in wanted]


def _cast(name: str, kind: str) -> str | None:
    """The hash of a text with a collation, which shows whether a batch runs the same again, is not that of its
    bytes."""
    return "binary" if name in ("key", "value") and _plain(kind) != kind else None
