"""Which columns of a DataFrame fit which columns of a table. Nothing is cast in silence."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence

from onceward.common.errors import ConfigurationError
from onceward.connectors.interfaces import Chosen
from onceward.sinks.postgres.driver.tables import Column, Table

__all__ = ["JSON", "choose", "column_problems"]

_TAKEN_BY = {
    "boolean": {"bool"},
    "tinyint": {"int2", "int4", "int8", "numeric"},
    "smallint": {"int2", "int4", "int8", "numeric"},
    "int": {"int4", "int8", "numeric"},
    "bigint": {"int8", "numeric"},
    "float": {"float4", "float8"},
    "double": {"float8"},
    "binary": {"bytea"},
    "date": {"date"},
    "timestamp": {"timestamptz"},
    "timestamp_ntz": {"timestamp"},
}
_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
_DECIMAL = re.compile(r"decimal\((\d+),(\d+)\)")
_ARRAY = re.compile(r"array<(.*)>")
_NESTED = ("array<", "map<", "struct<")
JSON = ("json", "jsonb")
"""Types that take what is nested."""


def column_problems(
    columns: Sequence[tuple[str, str]], table: Table, *, key: Collection[str] = (), delete: str = ""
) -> list[str]:
    """Describe every problem of ``columns`` (name, Spark type as text). ``key``: these must be there. ``delete``: the
    column of Booleans that is not written."""
    return [
        *_problems([(name, kind) for name, kind in columns if name != delete], table),
        *_key_problems(dict(columns), key, delete),
    ]


def _key_problems(kinds: Mapping[str, str], key: Collection[str], delete: str) -> Iterator[str]:
    for name in key:
        if name not in kinds:
            yield f"{name}: is missing, and belongs to the key; add it"
    if delete and kinds.get(delete) != "boolean":
        yield f"{delete}: is {kinds.get(delete, 'missing')}, must be boolean: it says which rows are deleted"


def _problems(columns: Sequence[tuple[str, str]], table: Table) -> Iterator[str]:
    known = {column.name: column for column in table.columns}
    names = [name for name, _ in columns]
    for name, kind in columns:
        column = known.get(name)
        if names.count(name) > 1:
            yield f"{name}: there are {names.count(name)} columns of that name; drop or rename all but one"
        elif column is None:
            similar = next((other for other in known if other.lower() == name.lower()), "")
            hint = f"rename it to {similar}" if similar else "rename or drop it, or add it to the table"
            yield f"{name}: the table has no such column; {hint}"
        elif column.computed:
            yield f"{name}: PostgreSQL makes its values and takes no others; drop it"
        elif not _fits(kind, column):
            yield f"{name}: is {kind}, and the table has {column.type}; cast one to the other's type"
    for column in table.writable:
        if column.required and not column.has_default and column.name not in names:
            yield f"{column.name}: is missing, and the table takes no null there; add it"


def _fits(kind: str, column: Column) -> bool:
    kind = "string" if kind.startswith("string collate") else kind
    if kind.startswith(_NESTED) and column.base in JSON:
        return True
    if found := _ARRAY.fullmatch(kind):
        return column.element is not None and _fits_one(found[1], column.element, "", column)
    return _fits_one(kind, column.base, column.category, column)


def _fits_one(kind: str, base: str, category: str, column: Column) -> bool:
    if kind == "string":
        # texts, enumerations, addresses, and types with a text form such as uuid and json
        return base in ("text", "varchar", "bpchar", "uuid") or (category in {*"SEIU"} and base != "bytea")
    limits = column.decimal if base == "numeric" else None
    if found := _DECIMAL.fullmatch(kind):
        precision, scale = int(found[1]), int(found[2])
        return base == "numeric" and (
            limits is None or (precision - scale <= limits[0] - limits[1] and scale <= limits[1])
        )
    if base not in _TAKEN_BY.get(kind, ()):
        return False
    return limits is None or _DIGITS[kind] <= limits[0] - limits[1]


def choose(
    columns: Sequence[tuple[str, str]], table: Table, *, key: Collection[str] = (), delete: str = ""
) -> Sequence[Chosen]:
    """Choose all columns. Raises ConfigurationError listing every problem."""
    problems = column_problems(columns, table, key=key, delete=delete)
    if problems:
        raise ConfigurationError(
            f"The rows cannot be written to table {table.full_name} as they are; nothing was read or written. Correct "
            "these columns:\n" + "\n".join(f"  - {problem}" for problem in problems)
        )
    return [Chosen(column=name, name=name) for name, _ in columns]
