"""The columns of records beside those of a table: found by name, whatever their order and case, as in Spark."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from onceward.common.errors import ConfigurationError
from onceward.connectors.interfaces import Chosen

__all__ = ["Column", "choose_columns", "plain"]

# Types that any value of another one fits into.
_WIDER: Mapping[str, tuple[str, ...]] = {
    "smallint": ("tinyint",),
    "int": ("tinyint", "smallint"),
    "bigint": ("tinyint", "smallint", "int"),
    "double": ("float",),
}


@dataclass(frozen=True)
class Column:
    """A column of a table."""

    name: str
    type: str
    """As Spark writes it."""
    nullable: bool


def choose_columns(given: Sequence[tuple[str, str]], columns: Sequence[Column], table: str) -> Sequence[Chosen]:
    """Choose the columns of the table that the records have, under the table's names. ``table``: for messages, such as
    ``Delta table /data/orders``.

    Raises ConfigurationError listing every problem.
    """
    problems = list(_problems(given, columns))
    if problems:
        raise ConfigurationError(
            f"The records do not fit the {table}; nothing was read or written. Correct these columns:\n"
            + "\n".join(f"  - {problem}" for problem in problems)
        )
    names = {name.lower(): name for name, _ in given}
    return [Chosen(column=names[one.name.lower()], name=one.name) for one in columns if one.name.lower() in names]


def _problems(given: Sequence[tuple[str, str]], columns: Sequence[Column]) -> Iterator[str]:
    known = {one.name.lower() for one in columns}
    for name, kind in given:
        if name.lower() not in known:
            yield f"{name}: the table has no such column ({kind}); leave it out, or add it to the table"
    for column in columns:
        name, wanted = column.name, column.type
        found = [plain(of) for other, of in given if other.lower() == name.lower()]
        if len(found) > 1:
            yield f"{name}: there are {len(found)} columns of that name; drop or rename all but one"
        elif not found and not column.nullable:
            yield f"{name}: the column is missing, and the table's {wanted} may not be null; add it"
        elif found and found[0] not in (wanted, *_WIDER.get(wanted, ())):
            cast = f"df.withColumn('{name}', col('{name}').cast('{wanted}'))"
            yield f"{name}: is {found[0]}, the table has {wanted}; cast it, for example {cast}"


def plain(kind: str) -> str:
    """Strip the collation, which does not affect the values written."""
    return "string" if kind.startswith("string collate") else kind
