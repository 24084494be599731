"""What Spark knows of a running query: its id, its logs, its output mode. Asked in the query's own thread."""

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, Self

from onceward.common.errors import ConfigurationError
from onceward.driver.streaming.batches import Batch, Found

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["Query", "moves_rows"]

_QUERY_ID = "sql.streaming.queryId"
"""Spark's local property for the jobs of a query (StreamExecution.QUERY_ID_KEY)."""
_PARTITIONS = "spark.sql.shuffle.partitions"
_COMPLETE = "Complete"
_OWNERS = "onceward"
"""Folder of a checkpointLocation with an empty file for the job that uses it. Spark does not read it."""
_TEMPORARY = re.compile(r"temporary-[0-9a-f-]{36}")
"""The name that Spark gives a checkpointLocation which it deletes with the query."""


class Query:
    """One run of a query. Its logs are read through Hadoop's file systems, as Spark reads them."""

    def __init__(self, spark: "SparkSession", running: Any) -> None:
        """``running``: Spark's ``StreamExecution``."""
        self._context: Any = spark.sparkContext
        jvm: Any = self._context._jvm
        self.id = str(running.id().toString())
        self.run = str(running.runId().toString())
        self._running = running
        # each of these takes several round trips to the JVM, so they are asked for once
        self.location = str(running.resolvedCheckpointRoot())
        self._path: Any = jvm.org.apache.hadoop.fs.Path
        self._to_bytes: Any = jvm.org.apache.commons.io.IOUtils.toByteArray
        root = self._path(self.location)
        session: Any = spark._jsparkSession
        self._files: Any = root.getFileSystem(session.sessionState().newHadoopConf())

    @classmethod
    def of_batch(cls, spark: "SparkSession") -> Self:
        """Return the query in whose thread this is called. Raises ConfigurationError outside of a query."""
        context: Any = spark.sparkContext
        query, running = context.getLocalProperty(_QUERY_ID), None
        if query is not None:
            shared: Any = spark._jsparkSession
            uuid = context._jvm.java.util.UUID.fromString(query)
            running = shared.sharedState().activeStreamingQueries().get(uuid)
        if running is None:
            raise ConfigurationError(
                "A StreamSink takes the batches of a running query, in the thread in which Spark calls the function "
                "that is passed to foreachBatch. Nothing was written. Pass it to df.writeStream.foreachBatch(sink), or "
                "call it inside that function. A thread that the function starts must be a pyspark.InheritableThread, "
                "or, for a pool, run pyspark.inheritable_thread_target(sink)."
            )
        return cls(spark, running)

    @classmethod
    def of(cls, spark: "SparkSession", query: "StreamingQuery") -> Self:
        """Return the query of a handle, which may have ended."""
        handle: Any = query
        return cls(spark, handle._jsq.streamingQuery())

    def is_here(self) -> bool:
        """Return whether this is called in the thread of a batch of this run."""
        return bool(self._context.getLocalProperty(_QUERY_ID) == self.id and self.active())

    @property
    def is_temporary(self) -> bool:
        """Whether Spark deletes the checkpointLocation: it makes one for a query that names none."""
        return _TEMPORARY.fullmatch(self.location.rpartition("/")[2]) is not None

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

    def failure(self) -> str | None:
        """Return what the query has failed with, in one line; None while it runs, and if it was stopped or finished."""
        raised: Any = self._running.exception()
        return last_line(str(raised.get().getMessage())) if raised.isDefined() else None

    def stop(self) -> None:
        """Stop the query: what runs is interrupted. Waits until its thread has ended."""
        self._running.stop()

    def committed(self, number: int) -> bool:
        """Whether batch ``number`` is in Spark's commit log, so that Spark does not run it again."""
        return self._exists(f"commits/{number}")

    def newest_committed(self) -> int | None:
        """Return the newest batch in Spark's commit log that a sink saw; None before the first."""
        numbers = [int(name) for name in self._names("commits") if name.isdigit()]
        return self._seen(max(numbers)) if numbers else None

    def owners(self) -> set[str]:
        """Return the jobs that have used the checkpointLocation."""
        return set(self._names(_OWNERS))

    def give_to(self, owner: str) -> None:
        """Name the job in the checkpointLocation, instead of all others."""
        others = self.owners() - {owner}
        self._files.create(self._path(f"{self.location}/{_OWNERS}/{owner}"), True).close()
        for other in others:
            self._files.delete(self._path(f"{self.location}/{_OWNERS}/{other}"), False)

    def find(self, number: int, *, last: int | None) -> Found:
        """Return batch ``number``.

        :param last: the one that the sink got before in this run; None for the first, before which alone Spark can
            have repartitioned the state.
        """
        entry = hashlib.sha256(self._read(f"offsets/{number}")).hexdigest()
        after = number - 1 if last is not None else self._seen(number - 1)
        batch = Batch(query=self.id, number=number, offsets=entry)
        return Found(batch=batch, after=after, location=self.location, last=last)

    def _seen(self, number: int) -> int:
        """Return ``number``, or the batch before those with which Spark has repartitioned the state."""
        while self._repartitioned(number):
            number -= 1
        return number

    def _repartitioned(self, number: int) -> bool:
        """Return whether Spark's StreamingCheckpointManager.repartition made the batch: it is committed, no sink saw
        it, and it differs from the one before only in the number of partitions."""
        files = (f"commits/{number}", f"offsets/{number - 1}", f"offsets/{number}")
        if number < 1 or not all(map(self._exists, files)):  # Spark deletes old entries
            return False
        before, entry = (self._read(file).decode().splitlines() for file in files[1:])
        return before[2:] == entry[2:] and _partitions(before) != _partitions(entry)

    def _exists(self, name: str) -> bool:
        return bool(self._files.exists(self._path(f"{self.location}/{name}")))

    def _names(self, folder: str) -> list[str]:
        if not self._exists(folder):
            return []
        return [
            str(found.getPath().getName()) for found in self._files.listStatus(self._path(f"{self.location}/{folder}"))
        ]

    def _read(self, name: str) -> bytes:
        stream = self._files.open(self._path(f"{self.location}/{name}"))
        try:
            return bytes(self._to_bytes(stream))
        finally:
            stream.close()


def last_line(message: str) -> str:
    """Return the error at the end of the Python traceback in Spark's ``message``; without one, its first line."""
    traced = message.rpartition("Traceback (most recent call last):")[2] if "Traceback (most" in message else ""
    raised = [line for line in traced.splitlines() if line and not line[0].isspace()]
    return raised[0] if raised else message.strip().partition("\n")[0]


def moves_rows(df: "DataFrame") -> bool:
    """Return whether rows of a batch move between tasks: its plan is an RDD by now, whose lineage shows the shuffle."""
    lineage: Any = df._jdf
    return "ShuffledRowRDD" in str(lineage.queryExecution().toRdd().toDebugString())


def _partitions(entry: list[str]) -> str | None:
    """Return the number of shuffle partitions in an entry of the offset log: version, metadata, one line a source."""
    found: str | None = json.loads(entry[1]).get("conf", {}).get(_PARTITIONS)
    return found
