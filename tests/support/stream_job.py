"""A Structured Streaming query under test: its files, its driver that is killed and started again, and the verdict."""

import json
from collections.abc import Mapping
from itertools import chain, pairwise

from tests.support.harness import Armed, Harness
from tests.support.killed_job import SPARK_LIMIT_S, KilledJob
from tests.support.processes import CLUSTER, Process
from tests.support.schedules import Outcome, Schedule
from tests.support.spark_cluster import LOCAL
from tests.support.stream_queries import QUERIES, File, feed, records
from tests.support.topics import open_transactions_hold_back

__all__ = ["StreamJob"]

_SETTINGS = {"lease": "5s", "tolerable_failed_checkpoints": 1000, "num_retained": 10_000}
_SHOWN = 5
"""Keys in a reason."""


class StreamJob(KilledJob):
    """A query of ``tests/support/stream_queries.py``. A batch reads one file, or two where a driver died between the
    log of Spark's file source and the log of offsets."""

    def __init__(
        self,
        harness: Harness,
        schedule: Schedule,
        query: str,
        *,
        ahead: int,
        state: Mapping[str, str] | None = None,
        spark: str = LOCAL,
    ) -> None:
        """``ahead``: files that each driver finds unread. ``state``: settings of Spark's state store. ``spark``:
        arguments of spark-submit."""
        super().__init__(harness, schedule, SPARK_LIMIT_S)
        self._spark = spark
        self.sink = self.topics.create("out", 2)
        self._query, self._ahead, self._state = query, ahead, dict(state or {})
        self._directory = harness.directory / self.name
        self._directory.mkdir()
        self._fed = 0
        self.orphan_grace = "10min"
        """From the next driver on."""

    def drive(self, armed: Armed | None = None) -> Process:
        """Kill what remains of the last driver, add files, and start the next one. No Spark lists the files meanwhile,
        so it reads them in their order."""
        if self.driver is not None:
            self.driver.end()
        wanted = self._read() + self._ahead
        feed(self._directory / "input", records(wanted)[self._fed :], first=self._fed)
        self._fed = max(self._fed, wanted)
        spec = {
            "job": self.name,
            "servers": self.harness.paths.drivers,
            "cluster": CLUSTER,
            "source": str(self._directory / "input"),
            "sink": self.sink,
            "coordinator": self.harness.address_for_drivers,
            "query": self._query,
            "trigger": None,
            "session": self._state,
            "settings": {**_SETTINGS, "orphan_grace": self.orphan_grace},
        }
        return self._start("tests.support.stream_queries", spec, self._spark, armed)

    def _read(self) -> int:
        """The number of files that Spark has planned into batches."""
        logged = (self._directory / "checkpoint" / "sources" / "0").glob("[0-9]*")
        return max((int(entry.stem) + 1 for entry in logged), default=0)

    def _batches(self) -> list[File]:
        """The records that Spark has planned, by batch."""
        ends = {0}
        for entry in (self._directory / "checkpoint" / "offsets").glob("[0-9]*"):
            source = json.loads(entry.read_text().splitlines()[2])  # after version and metadata, a line for each source
            ends.add(source["logOffset"] + 1)
        files = records(self._fed)
        return [[*chain(*files[first:end])] for first, end in pairwise(sorted(ends))]

    def finish(self) -> None:
        everything = sum(map(len, records(self._fed)))
        self.wait(lambda: sum(map(len, self._batches())) == everything, "all files are planned")
        wanted = QUERIES[self._query].oracle(self._batches())
        total = self.schedule.records = sum(map(len, wanted.values()))
        assert total, "the query has nothing to write yet, which proves nothing"
        self.wait(lambda: len(self.topics.read(self.sink)) >= total, f"all {total} records are written")
        self._stop()
        self.count()
        written: dict[bytes | None, list[bytes | None]] = {}
        for _, _, key, value in self.topics.read(self.sink):
            written.setdefault(key, []).append(value)
        different = [key for key in {*wanted, *written} if list(wanted.get(key or b"", ())) != written.get(key)]
        self.schedule.reasons += [
            f"key {key!r} was written as {written.get(key)}, not as {wanted.get(key or b'')}"
            for key in sorted(different, key=str)[:_SHOWN]
        ]
        held_back = open_transactions_hold_back(self.topics.servers, self.sink)
        if any(held_back.values()):
            self.schedule.reasons.append(f"transactions are open: {held_back}")
        self.schedule.outcome = Outcome.FAIL if self.schedule.reasons else Outcome.PASS
