"""What Spark knows of a running query: its id, its logs, its output mode. Asked in the query's own thread."""

import hashlib
import json
from typing import TYPE_CHECKING, Any

from onceward.coordinator.errors import ConfigurationError
from onceward.coordinator.pipeline.streaming.batches import Batch, Found

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["Query", "moves_rows"]

_QUERY_ID = "sql.streaming.queryId"
"""Spark's local property for the jobs of a query (StreamExecution.QUERY_ID_KEY)."""
_PARTITIONS = "spark.sql.shuffle.partitions"
_COMPLETE = "Complete"


class Query:
    """One run of a query. Its logs are read through Hadoop's file systems, as Spark reads them."""

    def __init__(self, df: "DataFrame") -> None:
        """``df``: a batch of the query, in its thread. Raises ConfigurationError outside of a query."""
        self._context: Any = df.sparkSession.sparkContext
        query = self._context.getLocalProperty(_QUERY_ID)
        jvm: Any = self._context._jvm
        running = None
        if query is not None:
            shared: Any = df.sparkSession._jsparkSession
            running = shared.sharedState().activeStreamingQueries().get(jvm.java.util.UUID.fromString(query))
        if running is None:
            raise ConfigurationError(
                "A StreamSink takes the batches of a running query. Nothing was written. Pass it to "
                "df.writeStream.foreachBatch(sink), or call it inside the function that is passed there."
            )
        self.id = str(query)
        self._running: Any = running
        # each of these takes several round trips to the JVM, so they are asked for once
        self._location = str(running.resolvedCheckpointRoot())
        self._path: Any = jvm.org.apache.hadoop.fs.Path
        self._to_bytes: Any = jvm.org.apache.commons.io.IOUtils.toByteArray
        root = self._path(self._location)
        self._files: Any = root.getFileSystem(self._context._jsc.hadoopConfiguration())

    def is_run_of(self, df: "DataFrame") -> bool:
        """Return whether ``df`` is a batch of this run."""
        context: Any = df.sparkSession.sparkContext
        return bool(context.getLocalProperty(_QUERY_ID) == self.id and self.active())

    @property
    def rewrites_everything(self) -> bool:
        """Whether each batch holds the whole result (output mode complete)."""
        return bool(self._running.outputMode().toString() == _COMPLETE)

    def has_state(self) -> bool:
        """Whether the query keeps state. Spark makes its folder before it calls the sink for the first batch."""
        return self._exists("state")

    def active(self) -> bool:
        """False once the query is being stopped."""
        return bool(self._running.isActive())

    def stop(self) -> None:
        """Stop the query: what runs is interrupted. Waits until its thread has ended."""
        self._running.stop()

    def committed(self, number: int) -> bool:
        """Whether batch ``number`` is in Spark's commit log, so that Spark does not run it again."""
        return self._exists(f"commits/{number}")

    def find(self, number: int, *, first: bool) -> Found:
        """Return batch ``number``. ``first``: of this run; only before it can Spark have repartitioned the state."""
        entry = hashlib.sha256(self._read(f"offsets/{number}")).hexdigest()
        after = number - 1
        while first and self._repartitioned(after):
            after -= 1
        batch = Batch(query=self.id, number=number, offsets=entry)
        return Found(batch=batch, after=after, location=self._location)

    def _repartitioned(self, number: int) -> bool:
        """Return whether Spark's StreamingCheckpointManager.repartition made the batch: it is committed, no sink saw
        it, and it differs from the one before only in the number of partitions."""
        files = (f"commits/{number}", f"offsets/{number - 1}", f"offsets/{number}")
        if number < 1 or not all(map(self._exists, files)):  # Spark deletes old entries
            return False
        before, entry = (self._read(file).decode().splitlines() for file in files[1:])
        return before[2:] == entry[2:] and _partitions(before) != _partitions(entry)

    def _exists(self, name: str) -> bool:
        return bool(self._files.exists(self._path(f"{self._location}/{name}")))

    def _read(self, name: str) -> bytes:
        stream = self._files.open(self._path(f"{self._location}/{name}"))
        try:
            return bytes(self._to_bytes(stream))
        finally:
            stream.close()


def moves_rows(df: "DataFrame") -> bool:
    """Return whether rows of a batch move between tasks: its plan is an RDD by now, whose lineage shows the shuffle."""
    lineage: Any = df._jdf
    return "ShuffledRowRDD" in str(lineage.queryExecution().toRdd().toDebugString())


def _partitions(entry: list[str]) -> str | None:
    """Return the number of shuffle partitions in an entry of the offset log: version, metadata, one line a source."""
    found: str | None = json.loads(entry[1]).get("conf", {}).get(_PARTITIONS)
    return found
