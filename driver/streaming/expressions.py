"""What a sink adds to the DataFrame of each batch, made once for all batches of a query.

Every expression costs round trips to Spark's JVM. Made for each batch, these took 30 of the 260 ms of a batch with
few records (2 cores).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from onceward.driver.spark.schemas import quoted
from onceward.executor.functions import DIGEST_COLUMN, PARTITION_COLUMN, BatchesTransform

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

__all__ = ["ArrowFunction", "RecordHashes"]


class RecordHashes:
    """Adds the hash of each record and the partition in which it is. Spark hashes no maps."""

    def __init__(self) -> None:
        self._columns: tuple[tuple[str, str], ...] = ()
        self._added: Sequence[Column] = ()

    def add_to(self, df: "DataFrame") -> "DataFrame":
        from pyspark.sql import functions

        columns = tuple(df.dtypes)
        if columns != self._columns:
            hashed = ", ".join(quoted(name) for name, kind in columns if "map<" not in kind)
            self._added = (
                functions.expr(f"xxhash64({hashed})").alias(DIGEST_COLUMN),
                functions.spark_partition_id().alias(PARTITION_COLUMN),
            )
            self._columns = columns
        return df.select("*", *self._added)


class ArrowFunction:
    """``DataFrame.mapInArrow`` with one function.

    Spark's own (``PandasMapOpsMixin.mapInArrow``) pickles the function, parses the schema and looks up each column in
    every call.
    """

    def __init__(self, function: BatchesTransform, schema: str) -> None:
        from pyspark.sql.pandas.functions import pandas_udf
        from pyspark.util import PythonEvalType

        self._udf: Any = pandas_udf(function, schema, PythonEvalType.SQL_MAP_ARROW_ITER_UDF)  # type: ignore[call-overload]
        self._columns: tuple[str, ...] = ()
        self._call: Any = None

    def apply_to(self, df: "DataFrame") -> "DataFrame":
        columns = tuple(df.columns)
        if columns != self._columns:
            self._call = self._udf(*map(quoted, columns))._jc
            self._columns = columns
        classic: Any = df
        mapped: DataFrame = type(df)(classic._jdf.mapInArrow(self._call, False, None), df.sparkSession)
        return mapped
