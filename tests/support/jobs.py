"""A pipeline under test: its topics, its feeder, its driver that is killed and started again, and the verdict."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Self, assert_never

from onceward.operate.verify import EVERYTHING, Grade, History, Property, judge
from onceward.operate.verify.judge import NOT_AT_LEAST_ONCE
from tests.support.driver import is_letter
from tests.support.feeder import Feeder
from tests.support.harness import Armed, Harness
from tests.support.job_tables import JobTables
from tests.support.killed_job import SPARK_LIMIT_S, KilledJob, conduct
from tests.support.processes import CLUSTER, Process
from tests.support.recorder import Recorder
from tests.support.repeats import unexplained
from tests.support.schedules import Outcome, Schedule

__all__ = ["Job", "Setup", "judged"]

_OF_RECORDS = frozenset(
    {Property.NOTHING_LOST, Property.NOTHING_TWICE, Property.NOTHING_FOREIGN, Property.NOTHING_OPEN}
)
"""The properties that need no positions: Spark has those of a query."""
_PARTITIONS = 3
_LIMIT_S = 120.0
"""Limit for every expected event without Spark; only a stalled machine needs this long."""
_QUICK = {
    "interval": "100ms",
    "lease": "1s",
    "stream_grace": "200ms",
    "orphan_grace": "60s",
    "tolerable_failed_checkpoints": 1000,
    "num_retained": 10_000,
}


class Setup:
    """How a job runs: the parameters of the driver's program."""

    def __init__(
        self,
        *,
        spark: str | None = None,
        query: bool = False,
        transform: bool = False,
        batches: bool = False,
        adaptive: bool = False,
        min_partitions: int | None = None,
        at_least_once: bool = False,
        staying: bool = False,
        per_checkpoint: int | None = 300,
        transaction_timeout: str | None = None,
        settings: Mapping[str, Any] | None = None,
        rate: int = 100,
        output: Mapping[str, str] | None = None,
        spread: int = _PARTITIONS,
        source_on: Sequence[int] = (),
        sink_on: Sequence[int] = (),
        outputs: int = 1,
        tables: Sequence[str] = (),
        letters: bool = False,
        refusing: bool = False,
    ) -> None:
        """``spark``: arguments of spark-submit; None = tasks run in the driver. ``query``: a Structured Streaming query
        that remembers every value; needs ``spark``. ``transform``: through the JVM.
        ``batches``: through a function in the worker. Neither = a plain copy. ``rate``: records per second and
        partition. ``staying``: by tasks that stay, without limits; needs ``spark``. ``output``: settings of the output
        topic. ``spread``: its partitions; there are as many keys. ``source_on``, ``sink_on``: the brokers that hold
        every partition, the leader first; empty = the cluster chooses. ``outputs``: topics that get every record, each
        by a sink of its own. ``tables``: kinds of tables of the harness that do so, too. ``letters``: one record in
        50 goes to a topic of its own instead. ``refusing``: because one of two outputs refuses it."""
        self.spark, self.query, self.transform, self.rate, self.output = spark, query, transform, rate, output
        self.per_checkpoint, self.transaction_timeout = per_checkpoint, transaction_timeout
        self.source_on, self.sink_on = source_on, sink_on
        self.batches, self.adaptive, self.min_partitions = batches, adaptive, min_partitions
        self.at_least_once = at_least_once
        self.staying = staying
        self.spread = spread
        self.outputs, self.tables, self.letters, self.refusing = outputs, tables, letters, refusing
        self.settings = {**_QUICK, **(settings or {})}

    def into(self, outputs: int, *, tables: Sequence[str] = (), letters: bool = False) -> Self:
        """The same with other outputs."""
        other = copy(self)
        other.outputs, other.tables, other.letters = outputs, tables, letters
        other.rate = self.rate // (outputs + len(tables))  # as many records are written
        return other

    @property
    def promised(self) -> frozenset[Property]:
        """The properties that the judge checks."""
        if self.query:
            return _OF_RECORDS
        promised = EVERYTHING
        if self.min_partitions is not None:
            promised -= {Property.ORDER, Property.PREFIX}
        if self.at_least_once:
            promised -= NOT_AT_LEAST_ONCE | {Property.PREFIX}
        return promised


def judged(
    harness: Harness, schedule: Schedule, setup: Setup, body: Callable[["Job"], None], armed: Armed | None = None
) -> Schedule:
    """Start a job, let ``body`` kill processes, let the job catch up, and judge. ``armed``: for the first driver."""

    def driven(job: Job) -> None:
        job.drive(armed)
        body(job)

    return conduct(Job(harness, schedule, setup), driven)


class Job(KilledJob):
    """A pipeline that copies records. A recorder watches its output."""

    def __init__(self, harness: Harness, schedule: Schedule, setup: Setup | None = None) -> None:
        self.setup = setup or Setup()
        super().__init__(harness, schedule, _LIMIT_S if self.setup.spark is None else SPARK_LIMIT_S)
        self.source = self.topics.create("in", _PARTITIONS, led_by=self.setup.source_on)
        self.sinks = [
            self.topics.create(name, self.setup.spread, config=self.setup.output, led_by=self.setup.sink_on)
            for name in ("out", *(f"out-{number}" for number in range(2, self.setup.outputs + 1)))
        ]
        self.sink = self.sinks[0]
        self.dead = self.topics.create("dead", _PARTITIONS, config=self.setup.output) if self.setup.letters else None
        self.tables = [harness.tables[kind] for kind in self.setup.tables]
        for tables in self.tables:
            tables.create(self.name)
        self.fed_besides = 0
        """Records in the input that did not come from the feeder."""

    def __enter__(self) -> Self:
        self.recorder = self._stack.enter_context(
            Recorder(
                self.topics.servers,
                job=self.name,
                inputs=[self.source],
                outputs=[*self.sinks, *([self.dead] if self.dead else [])],
                expected=lambda _, key, value: [(place, key, value) for place in self._places(value)],
                file=self.harness.directory / f"{self.name}.history.jsonl",
                coordinator=self.harness.address,
            )
        )
        self.feeder = self._stack.enter_context(
            Feeder(
                self.topics.servers,
                self.source,
                partitions=_PARTITIONS,
                rate=self.setup.rate,
                keys=max(5, self.setup.spread),
            )
        )
        return self

    def _places(self, value: bytes | None) -> Sequence[str]:
        """The topics that get a record."""
        return [self.dead] if self.dead is not None and is_letter(value) else self.sinks

    # -- drivers

    def drive(self, armed: Armed | None = None) -> Process:
        """Kill what remains of the last driver and start the next one."""
        if self.driver is not None:
            self.driver.end()
        spec = {
            "job": self.name,
            "servers": self.harness.paths.drivers,
            "cluster": CLUSTER,
            "source": self.source,
            "sink": self.sink,
            "sinks": self.sinks if len(self.sinks) > 1 or self.tables else None,
            "tables": [tables.sink(self.name) for tables in self.tables],
            "coordinator": self.harness.address_for_drivers,
            "spark": self.setup.spark is not None,
            "query": str(self.harness.directory / f"{self.name}.checkpoint") if self.setup.query else None,
            "dataframe": self.setup.transform,
            "batches": self.setup.batches,
            "letters": self.dead,
            "refusing": self.setup.refusing,
            "tasks": "staying" if self.setup.staying else "per_checkpoint",
            "source_options": {
                "start": "earliest",
                "max_offsets_per_checkpoint": None if self.setup.staying else self.setup.per_checkpoint,
                "adaptive": self.setup.adaptive,
                "min_partitions": self.setup.min_partitions,
            },
            "sink_options": {
                "delivery": "at_least_once" if self.setup.at_least_once else "exactly_once",
                "transaction_timeout": self.setup.transaction_timeout,
            },
            "careless": self.setup.transaction_timeout is not None,
            "settings": self.setup.settings,
        }
        return self._start("tests.support.driver", spec, self.setup.spark, armed)

    # -- the verdict

    def finish(self) -> None:
        """Let the running driver catch up, stop it, and judge. Raises AssertionError."""
        fed = self.schedule.records = self.feeder.finish() + self.fed_besides
        # values are unique; count one that is repeated, as it may be without transactions, once
        self.wait(
            lambda: all(self._in(sink) >= fed for sink in self.sinks),
            f"all {fed} are copied",
        )
        for kind, tables in zip(self.setup.tables, self.tables, strict=True):
            self._wait_for_rows(kind, tables, fed)
        self._stop()
        self.judge()

    def _in(self, sink: str) -> int:
        """The records in an output, and those that were set aside."""
        topics = [sink, self.dead] if self.dead is not None else [sink]
        return sum(len({value for *_, value in self.topics.read(topic)}) for topic in topics)

    def judge(self) -> None:
        """Stop the recorder, judge all that was visible at rest and during the run, and set the outcome."""
        schedule = self.schedule
        self.count()
        self.harness.serving()
        history = self.recorder.finish(whole_input=True)
        if self.setup.query:
            history = replace(history, reports=())
        verdict = judge(history, self.setup.promised)
        for kind, tables in zip(self.setup.tables, self.tables, strict=True):
            schedule.reasons += self._wrong_rows(kind, tables)
        if self.setup.at_least_once:
            schedule.reasons += self._repeated(history)
        schedule.results = {result.property.value: result.grade.value for result in verdict.results.values()}
        match verdict.grade:
            case Grade.PASS:
                schedule.outcome = Outcome.FAIL if schedule.reasons else Outcome.PASS
            case Grade.FAIL:
                schedule.outcome = Outcome.FAIL
                schedule.reasons.append(verdict.text())
            case Grade.UNKNOWN:
                schedule.outcome = Outcome.FAIL if schedule.reasons else Outcome.UNKNOWN
                schedule.reasons.append(verdict.text())
            case _:
                assert_never(verdict.grade)

    def _wait_for_rows(self, kind: str, tables: JobTables, fed: int) -> None:
        self.wait(lambda: tables.rows(self.name).total() >= fed, f"all {fed} are in the table of {kind}")

    def _wrong_rows(self, kind: str, tables: JobTables) -> list[str]:
        """Reasons against the rows of a table: each record of the input must be there once, and nothing staged."""
        read = Counter((key, value) for _, _, key, value in self.topics.read(self.source))
        rows = tables.rows(self.name)
        wrong = [] if rows == read else [f"{kind}: the table lacks {read - rows} and has {rows - read} besides"]
        return [*wrong, *(f"{kind}: {each} was left" for each in tables.left(self.name))]

    def _repeated(self, history: History) -> list[str]:
        """Reasons against the records that are repeated, or against transactions where there should be none."""
        wrong = []
        if any(event["transactions"] for event in self.events("pre-committed")):
            wrong.append("the job wrote transactions")
        assert self.setup.per_checkpoint is not None
        # every generation but the first follows the death of a driver
        deaths = [event["checkpoint"] for event in self.events("recovered") if event["generation"] > 1]
        return [*wrong, *unexplained(history, deaths, self.setup.per_checkpoint)]
