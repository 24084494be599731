"""The programs of examples/streams write exactly what their input says, as a person runs them; oracles in plain Python.

Some programs get their input in two halves. After each half they run until they have read everything, so the second run
continues from the state of the first. A program differs from its file only in addresses and in the trigger.
"""

import json
import runpy
import signal
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from tests.support import stream_oracles
from tests.support.processes import Process, spark_variables
from tests.support.shared_kafka import SharedKafka
from tests.support.stream_oracles import Row
from tests.support.topics import Topics
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        find_spec("pyspark.sql.streaming.datasource") is None,
        reason='the programs read streams with format("onceward"), which needs PySpark 4.2',
    ),
]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "streams"
ADDRESS = "localhost:9092"
LIMIT_S = 600.0
"""Limit for any step: the machine may be busy."""
KILLS = 3
TRIES = 30

fill = runpy.run_path(str(EXAMPLES / "fill.py"))
"""The names that the program defines."""


def halves(name: str) -> tuple[list[Row], list[Row]]:
    rows = list(fill["INPUTS"][name]())
    return rows[: len(rows) // 2], rows[len(rows) // 2 :]


def rounds_of(name: str, runs: int) -> list[list[Row]]:
    """What each run of a program reads."""
    first, second = halves(name)
    return [first, second] if runs == 2 else [first + second]


def copied(name: str, directory: Path, **changes: str) -> Path:
    """Copy the program, with other text where it is to differ."""
    text = (EXAMPLES / name).read_text()
    for shown, used in changes.items():
        text = text.replace(shown, used)
    program = directory / name
    program.write_text(text)
    return program


class Programs:
    """Runs the programs in this process, on its Spark session."""

    def __init__(self, servers: str, directory: Path, patch: pytest.MonkeyPatch) -> None:
        self.topics = Topics(servers, "streams")
        self.directory, self._patch = directory, patch
        patch.chdir(directory)  # for the coordinator's directory

    def produce(self, half: int) -> None:
        for name in fill["INPUTS"]:
            fill["produce"](self.topics.servers, f"streams-{name}", halves(name)[half])

    def run(self, name: str) -> None:
        """Run until the program has read everything. Spark fails a query whose Python worker needs 10 s to start
        (PythonWorkerFactory): on a busy machine the program runs again, as after any failure."""
        changes = {
            ADDRESS: self.topics.servers,
            "checkpoints/": f"{self.directory}/checkpoints/",  # the JVM has a working directory of its own
            'processingTime="1 second"': "availableNow=True",
            '"processingTime": "1 second"': '"availableNow": True',
            'start="earliest")': 'start="earliest", end="latest")',
        }
        self._patch.setattr(sys, "argv", [name])
        program = str(copied(name, self.directory, **changes))
        for tries_left in reversed(range(TRIES)):
            try:
                runpy.run_path(program, run_name="__main__")
                return
            except Exception as error:
                said = "".join(traceback.format_exception(error))
                if tries_left == 0 or "Python worker failed to connect back" not in said:
                    raise


RUN_TWICE = ("orders_per_hour.py", "lake_windows.py", "sessions.py", "stock.py", "reorders.py")
RUN_ONCE = ("word_count.py", "page_views.py", "paid_orders.py", "silent_sensors.py")


@pytest.fixture(scope="module")
def programs(kafka: SharedKafka, spark: "SparkSession", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """All programs, after they have read their input."""
    settings = {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "2"}
    provider = "spark.sql.streaming.stateStore.providerClass"
    former = {name: spark.conf.get(name) for name in (*settings, provider)}
    for name, value in settings.items():
        spark.conf.set(name, value)
    fill["make_topics"](kafka.bootstrap_servers)
    with pytest.MonkeyPatch.context() as patch:
        made = Programs(kafka.bootstrap_servers, tmp_path_factory.mktemp("streams"), patch)
        for half in (0, 1):
            made.produce(half)
            for name in RUN_TWICE if half == 0 else (*RUN_TWICE, *RUN_ONCE):
                made.run(name)
        yield made
    for name in former:
        spark.conf.set(name, str(former[name]))


def read(topics: Topics, topic: str) -> list[Row]:
    """What a ``read_committed`` reader sees, partition by partition in log order."""
    found = topics.read(topic)
    return [((key or b"").decode(), None if value is None else value.decode()) for _, _, key, value in found]


@pytest.mark.parametrize(
    ("output", "oracle", "inputs", "runs"),
    [
        ("word-counts", stream_oracles.word_counts, ("lines",), 1),
        ("orders-per-hour", stream_oracles.total_changes, ("orders",), 2),
        ("final-orders-per-hour", stream_oracles.final_totals, ("orders",), 2),
        ("hours", stream_oracles.final_totals, ("orders",), 2),
        ("enriched-views", stream_oracles.enriched_views, ("views", "users"), 1),
        ("sessions", stream_oracles.sessions, ("actions",), 2),
        ("paid-orders", stream_oracles.paid_orders, ("orders", "payments"), 1),
        ("stock", stream_oracles.stock, ("movements",), 2),
        ("reorders", stream_oracles.reorders, ("movements",), 2),
        ("alerts", stream_oracles.alerts, ("readings",), 1),
    ],
)
def test_an_example_writes_exactly_what_its_input_says(
    programs: Programs, output: str, oracle: Callable[[Any], Counter[Row]], inputs: tuple[str, ...], runs: int
) -> None:
    read_by_run = [rounds_of(name, runs) for name in inputs]
    rounds = read_by_run[0] if len(inputs) == 1 else list(zip(*read_by_run, strict=True))
    assert Counter(read(programs.topics, f"streams-{output}")) == oracle(rounds)


def test_a_table_has_the_same_hours_as_the_topic(programs: Programs) -> None:
    found = DeltaTable(programs.directory / "lake" / "hours").to_pyarrow_table().to_pylist()
    rows = [
        (
            f"{row['hour']:%Y-%m-%dT%H} {row['category']}",
            f'{{"orders":{row["orders"]},"cents":{row["cents"]}}}',
        )
        for row in found
    ]
    assert Counter(rows) == Counter(read(programs.topics, "streams-hours"))


def test_the_state_of_a_query_is_read_from_its_checkpoint_location(
    programs: Programs, capsys: pytest.CaptureFixture[str]
) -> None:
    newest = dict(read(programs.topics, "streams-word-counts"))
    most = sorted(((int(count or 0), word) for word, count in newest.items()), reverse=True)[:10]
    capsys.readouterr()
    programs.run("read_state.py")
    assert capsys.readouterr().out.splitlines() == [f"{count} {word}" for count, word in most]


@pytest.mark.crash
def test_totals_are_exact_and_never_step_back_while_their_program_is_killed_at_random_moments(
    topics: Topics, job: str, tmp_path: Path
) -> None:
    source = topics.create("orders", 2)
    changing, final = topics.create("orders-per-hour", 2), topics.create("final-orders-per-hour", 2)
    # without those that come too late: which ones they are depends on where batches begin
    orders = [row for row in fill["INPUTS"]["orders"]() if int(row[0]) % 50 != 7]
    newest, closed = dict(stream_oracles.total_changes([orders]).keys()), stream_oracles.final_totals([orders])
    changes = {ADDRESS: topics.servers, "streams-": f"{topics.prefix}.", "job=name": f'job=f"{job}-{{name}}"'}
    program = copied("orders_per_hour.py", tmp_path, **changes)
    rest, moments = iter(orders), Random(9)

    def feed(records: int) -> None:
        fill["produce"](topics.servers, source, islice(rest, records))

    def wait_for(reached: Callable[[], bool], process: Process) -> None:
        wait_until(lambda: reached() or not process.running, "the totals are written", LIMIT_S)
        assert process.running, process.tail()

    def start() -> Process:
        environment = {**spark_variables(tmp_path), "PYSPARK_PYTHON": sys.executable, "TZ": "UTC"}
        return Process([sys.executable, str(program)], tmp_path / "log", environment, tmp_path)

    for _ in range(KILLS):
        process, before = start(), len(read(topics, changing))
        try:
            feed(20)
            wait_for(lambda before=before: len(read(topics, changing)) > before, process)  # type: ignore[misc]
            moment = monotonic() + moments.uniform(0, 4)
            while monotonic() < moment:  # there is always a batch to hit
                feed(2)
                sleep(0.1)
        finally:
            process.end()

    process = start()
    try:
        feed(len(orders))
        wait_for(lambda: dict(read(topics, changing)) == newest and len(read(topics, final)) >= len(closed), process)
        process.send(signal.SIGINT)
        assert process.wait(LIMIT_S) == 0, process.tail()
    finally:
        process.end()
    assert Counter(read(topics, final)) == closed
    counts: dict[str, list[int]] = {}
    for key, value in read(topics, changing):
        counts.setdefault(key, []).append(json.loads(value or "")["orders"])
    assert all(each == sorted(set(each)) for each in counts.values()), "a total was written twice, or stepped back"
