"""``format("onceward")``: Kafka as a Python data source of Spark.

Spark pickles the data source's class by reference and imports this module in every process that has to do with a read:
the planners beside the driver, and the executors' workers. So what only planners need is imported where they need it.
"""

import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader

from onceward.common.errors import ConfigurationError, PreflightError
from onceward.sources.kafka.executor.columns import COLUMNS, HEADERS, ddl_of
from onceward.sources.kafka.executor.partitions import PartitionReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ["OncewardDataSource", "columns_of", "make_known", "register"]

_STREAMS = "pyspark.sql.streaming.datasource"
"""PySpark's module of limits per trigger and availableNow, for sources in Python: since 4.2."""


def register(spark: "SparkSession") -> None:
    """Make ``format("onceward")`` known to ``spark``, and send Onceward's code to its executors.

    Call it for each session, also for those that ``newSession()`` makes; a second call does nothing. Raises
    PreflightError that names what executors lack, or a session of Spark Connect.
    """
    make_known(spark, OncewardDataSource)


def make_known(spark: "SparkSession", source: "type[OncewardDataSource]") -> None:
    """Register ``source`` as :func:`register` does."""
    from pyspark import SparkFiles

    from onceward.driver.spark.session import Spark, ship

    if not hasattr(spark, "_jsparkSession"):
        raise PreflightError(
            'format("onceward") needs a classic session, and this is one of Spark Connect. Nothing was registered. '
            "Make the session with spark-submit or SparkSession.builder.master(...)."
        )
    session: Any = spark._jsparkSession
    if session.sessionState().dataSourceManager().dataSourceExists(source.name()):
        return
    archive = ship(Spark.of(spark), (source.__module__, PartitionReader.__module__), arrow=True)
    # Planners of streams look here for code that was sent (PySpark 4.3), so Onceward need not be installed for them.
    place = Path(SparkFiles.getRootDirectory(), "streaming_job")
    place.mkdir(exist_ok=True)
    shutil.copy(archive, place)
    sessions: Any = getattr(spark.sparkContext._jvm, "org.apache.spark.sql.classic.SparkSession")
    active = sessions.getActiveSession()
    # Spark looks for an existing source of that name in the active session, which may be another one.
    sessions.setActiveSession(session)
    try:
        spark.dataSource.register(source)
    finally:
        if active.isDefined():
            sessions.setActiveSession(active.get())


class OncewardDataSource(DataSource):
    """Topics of one Kafka cluster, read as a ``read_committed`` reader."""

    @classmethod
    def name(cls) -> str:
        return "onceward"

    def schema(self) -> str:
        from onceward.sources.kafka.driver.options import ReadOptions

        return ddl_of(ReadOptions.parse(self.options).columns)

    def reader(self, schema: "StructType") -> DataSourceReader:
        from onceward.sources.kafka.driver.batch_reader import KafkaBatchReader
        from onceward.sources.kafka.driver.options import Mode, ReadOptions

        return KafkaBatchReader(ReadOptions.parse(self.options, Mode.BATCH), columns_of(schema))

    def streamReader(self, schema: "StructType") -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        import pyspark

        from onceward.sources.kafka.driver.options import Mode, ReadOptions

        if find_spec(_STREAMS) is None:
            raise ConfigurationError(
                f'readStream.format("onceward") needs PySpark 4.2; this is {pyspark.__version__}. Nothing was read. '
                "Install PySpark 4.2 or newer, or use spark.read."
            )
        from onceward.sources.kafka.driver.stream_reader import KafkaStreamReader

        return KafkaStreamReader(ReadOptions.parse(self.options, Mode.STREAM), columns_of(schema))

    def writer(self, schema: "StructType", overwrite: bool) -> NoReturn:
        raise _reading_only("A DataFrame is written by a Pipeline, or by a streaming query with foreachBatch.")

    def streamWriter(self, schema: "StructType", overwrite: bool) -> NoReturn:  # noqa: N802 - Spark's name
        raise _reading_only("Use writeStream.foreachBatch(StreamSink(...)) instead, which is exactly once.")


def columns_of(schema: "StructType") -> tuple[str, ...]:
    """Return the columns to read: those of the program's schema, if it gave one."""
    known = {name: ddl_of([name]).replace(": ", ":").replace(", ", ",") for name in (*COLUMNS, HEADERS)}
    given = {field.name: f"{field.name} {field.dataType.simpleString()}" for field in schema}
    wrong = [text for name, text in given.items() if text != known.get(name)]
    if wrong or not given:
        raise ConfigurationError(
            f'format("onceward") has no columns {", ".join(wrong)}. Nothing was read. Leave out schema() or name '
            f"some of its columns: {', '.join(known.values())}."
        )
    return tuple(given)


def _reading_only(instead: str) -> ConfigurationError:
    return ConfigurationError(f'format("onceward") is for reading only; nothing was written. {instead}')
