"""Functions for DataFrames that mark what cannot be read, instead of failing."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import Column

__all__ = ["parse_json"]

_CORRUPT = "_onceward_corrupt"


def parse_json(column: str, schema: str) -> "Column":
    """Parse a column of JSON objects; return a struct of ``record``, with the fields of ``schema``, and ``reason``.

    ``reason`` is null if the value is a JSON object of this schema, and a text otherwise. Fields that are missing are
    null, as ``from_json`` reads them (Spark's mode PERMISSIVE).

    >>> df.withColumn("p", parse_json("value", "n bigint")).select("*", "p.record.*", "p.reason")  # doctest: +SKIP

    :param column: a name, of type string or binary.
    :param schema: a DDL string, such as ``n bigint, currency string``.
    """
    from pyspark.sql import functions as F  # noqa: N812

    text = F.col(column).cast("string")
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    parsed = F.from_json(text, f"{schema}, {_CORRUPT} string", options)
    reason = (
        F.when(text.isNull(), F.lit("the value is null"))
        .when(parsed.isNull(), F.lit("the value is empty"))
        .when(parsed[_CORRUPT].isNotNull(), F.lit(f"the value is no JSON object of {schema}"))
    )
    return F.struct(parsed.dropFields(_CORRUPT).alias("record"), reason.alias("reason"))
