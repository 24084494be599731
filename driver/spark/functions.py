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

    def marked(one: "Column") -> "Column":
        record = one["record"]
        reason = (
            F.when(one["text"].isNull(), F.lit("the value is null"))
            .when(record.isNull(), F.lit("the value is empty"))
            .when(record[_CORRUPT].isNotNull(), F.lit(f"the value is no JSON object of {schema}"))
        )
        return F.struct(record.dropFields(_CORRUPT).alias("record"), reason.alias("reason"))

    # Spark parses again wherever an expression names the parsed record, but evaluates the argument of a function once
    return F.transform(F.array(F.struct(text.alias("text"), parsed.alias("record"))), marked)[0]
