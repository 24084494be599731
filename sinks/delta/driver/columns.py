"""The columns of records beside those of a Delta table. Its log writes types as Spark's JSON does."""

from collections.abc import Mapping, Sequence
from typing import Any

from onceward.common.errors import ConfigurationError
from onceward.connectors.interfaces import Chosen
from onceward.sinks.lake.driver.columns import Column, choose_columns
from onceward.sinks.lake.driver.types import parse_type, spark_type

__all__ = ["choose", "new_fields"]


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
                found.append({"name": name, "type": parse_type(kind), "nullable": True, "metadata": {}})
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
