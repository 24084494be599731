"""The demo's check against a real broker: it passes a correct output and fails each wrong one."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable, write_deltalake

from onceward.dev.demo import topics as names
from onceward.dev.demo.broker import Broker, read_committed
from onceward.dev.demo.check import Checked, check
from onceward.dev.demo.expected import Expected, Record, expected_output, output_of
from onceward.dev.demo.feeder import feed
from onceward.dev.demo.flights import messages
from onceward.dev.demo.history import History
from onceward.dev.demo.lake import create_table
from onceward.dev.demo.markers import End
from onceward.dev.demo.run import run_demo
from onceward.dev.kafka import LocalKafka
from onceward.dev.postgres.binaries import is_offered
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long

LIMIT = 2000
HISTORY = History(generations=2, completed=9, aborted=1, unsettled=0)
KILL = "driver.after_decision:8"


@pytest.fixture
def cluster() -> Iterator[LocalKafka]:
    """A separate broker, because the demo's topics have fixed names."""
    with LocalKafka(heap="256m") as kafka:
        Broker(kafka.bootstrap_servers).create_topics([names.FLIGHTS, *names.OUTPUTS], partitions=names.PARTITIONS)
        yield kafka


class Writer:
    """Writes outputs as any transactional producer would, and keeps the producers of open transactions alive."""

    def __init__(self, servers: str) -> None:
        self._servers = servers
        self._open: list[Producer] = []
        self._count = 0

    def write(self, output: Expected, *, end: End | None) -> None:
        """Write one transaction under its own id; ``end`` None leaves it open."""
        self._count += 1
        producer = Producer(
            {
                "bootstrap.servers": self._servers,
                "transactional.id": f"{names.JOB}.kafka.1.test.{self._count}",
                "partitioner": "murmur2_random",
            }
        )
        producer.list_topics(timeout=10)
        producer.init_transactions(10)
        producer.begin_transaction()
        for topic, records in output.items():
            for record in records:
                producer.produce(topic, key=record.key, value=record.value)
        assert producer.flush(30) == 0
        match end:
            case End.COMMIT:
                producer.commit_transaction(10)
            case End.ABORT:
                producer.abort_transaction(10)
            case None:
                self._open.append(producer)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table with every delay of the first flights, as any program would write it."""
    path = tmp_path_factory.mktemp("table")
    create_table(path)
    found = [json.loads(record.value or b"") for record in expected_output(messages(LIMIT))[names.DELAYED]]
    schema = pa.schema(DeltaTable(path).schema().to_arrow())
    write_deltalake(path, pa.Table.from_pylist(found, schema), mode="append")
    return path


def checked(cluster: LocalKafka, table: Path) -> Checked:
    """Judge as if the first two transactions had been open when the driver was killed."""
    left_open = [f"{names.JOB}.kafka.1.test.{number}" for number in (1, 2)]
    return check(
        cluster.bootstrap_servers,
        table,
        history=HISTORY,
        left_open=left_open,
        planned=[KILL],
        happened=[KILL],
        limit=LIMIT,
    )


def pieces(records: Sequence[Record], count: int) -> list[list[Record]]:
    size = len(records) // count + 1
    return [list(records[start : start + size]) for start in range(0, len(records), size)]


def without(records: Sequence[Record], place: int) -> list[Record]:
    return [*records[:place], *records[place + 1 :]]


def swapped(records: Sequence[Record]) -> list[Record]:
    """Swap the first record with the next one of the same key."""
    changed = list(records)
    other = next(place for place in range(1, len(changed)) if changed[place].key == changed[0].key)
    changed[0], changed[other] = changed[other], changed[0]
    return changed


def test_a_right_run_passes_with_the_brokers_own_numbers(cluster: LocalKafka, table: Path) -> None:
    assert feed(cluster.bootstrap_servers, names.FLIGHTS, seconds=1, limit=LIMIT) == LIMIT
    output = expected_output(messages(LIMIT))
    writer = Writer(cluster.bootstrap_servers)
    for piece in pieces(output[names.DELAYED], 3):
        writer.write({names.DELAYED: piece}, end=End.COMMIT)
    writer.write({names.DELAYED: output[names.DELAYED][:100]}, end=End.ABORT)
    writer.write({names.REJECTED: output[names.REJECTED]}, end=End.COMMIT)

    result = checked(cluster, table)
    assert result.verdict.passed, result.verdict.problems
    assert result.rows["transactions committed"] == "4"
    assert result.rows["transactions aborted"] == "1"
    assert result.rows["transactions resumed"] == "2"
    assert result.rows["transactions open"] == "0"
    assert result.rows["records in"] == "2,000"
    assert result.rows["rows in the Delta table"] == result.rows["records out"]
    assert result.rows["records out"] == f"{len(output[names.DELAYED]):,}"


MUTATIONS: dict[str, tuple[Callable[[Expected], Expected], str]] = {
    "lost": (lambda good: {**good, names.DELAYED: without(good[names.DELAYED], 500)}, "1 records lost"),
    "doubled": (lambda good: {**good, names.DELAYED: [*good[names.DELAYED], good[names.DELAYED][7]]}, "1 records too"),
    "reordered": (lambda good: {**good, names.DELAYED: swapped(good[names.DELAYED])}, "records out of order"),
    "wrong topic": (
        lambda good: {
            names.DELAYED: [*good[names.DELAYED], good[names.REJECTED][3]],
            names.REJECTED: without(good[names.REJECTED], 3),
        },
        "records belong to flights-rejected",
    ),
}


# The judge's own tests have every kind; here a loss and a wrong place show that the demo asks it.
@pytest.mark.parametrize(
    "mutation",
    [pytest.param(each, marks=() if each in ("lost", "wrong topic") else pytest.mark.crash) for each in MUTATIONS],
)
def test_a_wrong_output_fails(cluster: LocalKafka, table: Path, mutation: str) -> None:
    change, words = MUTATIONS[mutation]
    feed(cluster.bootstrap_servers, names.FLIGHTS, seconds=0.5, limit=LIMIT)
    output = change(expected_output(messages(LIMIT)))
    writer = Writer(cluster.bootstrap_servers)
    writer.write({names.REJECTED: output[names.REJECTED][:5]}, end=End.ABORT)
    writer.write(output, end=End.COMMIT)

    problems = checked(cluster, table).verdict.problems
    assert any(words in problem for problem in problems), problems
    assert all("records" in problem for problem in problems), "nothing else is wrong"


def test_a_table_that_lacks_rows_fails(cluster: LocalKafka, tmp_path: Path) -> None:
    create_table(tmp_path / "empty")
    feed(cluster.bootstrap_servers, names.FLIGHTS, seconds=0.5, limit=LIMIT)
    output = expected_output(messages(LIMIT))
    writer = Writer(cluster.bootstrap_servers)
    writer.write({names.DELAYED: output[names.DELAYED][:5]}, end=End.ABORT)
    writer.write(output, end=End.COMMIT)
    (problem,) = checked(cluster, tmp_path / "empty").verdict.problems[:1]
    assert f"delays: {len(output[names.DELAYED])} records lost" in problem


def test_an_open_transaction_fails_the_check_and_hidden_records_count_as_lost(cluster: LocalKafka, table: Path) -> None:
    feed(cluster.bootstrap_servers, names.FLIGHTS, seconds=0.5, limit=LIMIT)
    output = expected_output(messages(LIMIT))
    writer = Writer(cluster.bootstrap_servers)
    writer.write({names.DELAYED: output[names.DELAYED][:5]}, end=End.ABORT)
    writer.write({names.DELAYED: output[names.DELAYED]}, end=End.COMMIT)
    writer.write({names.REJECTED: output[names.REJECTED]}, end=None)

    problems = checked(cluster, table).verdict.problems
    assert any("1 transactions are still open: flights.kafka.1.test.3" in problem for problem in problems)
    assert any("held back from read_committed readers" in problem for problem in problems)
    assert any(f"flights-rejected: {len(output[names.REJECTED])} records lost" in problem for problem in problems)


def test_a_run_without_aborted_or_resumed_transactions_or_without_its_kill_fails(
    cluster: LocalKafka, table: Path
) -> None:
    feed(cluster.bootstrap_servers, names.FLIGHTS, seconds=0.5, limit=LIMIT)
    Writer(cluster.bootstrap_servers).write(expected_output(messages(LIMIT)), end=End.COMMIT)

    result = check(
        cluster.bootstrap_servers,
        table,
        history=HISTORY,
        left_open=[],
        planned=[KILL],
        happened=[],
        limit=LIMIT,
    )
    assert [problem.split(":")[0] for problem in result.verdict.problems] == [
        "planned kill did not happen",
        "no transaction was resumed",
        "no transaction was aborted",
    ]


def test_the_fed_records_are_the_data_set_in_order_per_key(cluster: LocalKafka) -> None:
    feed(cluster.bootstrap_servers, names.FLIGHTS, seconds=0.5, limit=LIMIT)
    ends = Broker(cluster.bootstrap_servers).ends([names.FLIGHTS])
    seen = list(read_committed(cluster.bootstrap_servers, names.FLIGHTS, ends))
    sent = list(messages(LIMIT))
    for key in {one.key for one in sent}:
        assert [one.record.value for one in seen if one.record.key == key] == [
            one.value for one in sent if one.key == key
        ]
    assert len(seen) == LIMIT


_TRANSFORM = """
import sys
from pyspark.sql import SparkSession
from onceward.dev.demo.flights import messages
from onceward.dev.demo.job import delays
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .getOrCreate()
)
rows = [(one.key, one.value) for one in messages(6000)]
for row in delays(spark.createDataFrame(rows, "key binary, value binary").coalesce(1)).collect():
    print(row.topic, bytes(row.key).decode(), row.value)
"""


def test_the_jobs_transform_and_the_check_agree_byte_for_byte() -> None:
    """Compare the outputs for 6,000 real messages, with every kind of damage, in order."""
    ran = subprocess.run([sys.executable, "-c", _TRANSFORM], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    output = [routed for one in messages(6000) if (routed := output_of(one)) is not None]
    assert ran.stdout.splitlines() == [
        f"{topic} {(record.key or b'').decode()} {(record.value or b'').decode()}" for topic, record in output
    ]


def _processes_with(text: str) -> list[str]:
    """Command lines of running processes that have ``text`` in their command line or environment."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            # the driver's JVM and Python workers are found by the environment that they inherit
            if text in command or text in (process / "environ").read_bytes().decode(errors="replace"):
                found.append(command)
    return found


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_ending_the_demo_ends_all_its_processes(tmp_path: Path, number: signal.Signals) -> None:
    keep = tmp_path / "demo"
    with (tmp_path / "output").open("wb") as output:
        demo = subprocess.Popen(
            [sys.executable, "-m", "onceward.dev.demo", "--seconds", "60", "--keep", str(keep)],
            stdout=output,
            stderr=output,
            env={**os.environ, "TMPDIR": str(tmp_path)},  # all processes inherit it, which is how they are found
        )
    try:
        # Spark is up by then: the driver's JVM, its workers, the broker, the coordinator and the feeder are running
        wait_until(lambda: demo.poll() is not None or (keep / "events.jsonl").exists(), "the job runs", limit_s=120)
        assert demo.poll() is None, (tmp_path / "output").read_text()
        assert len(_processes_with(str(tmp_path))) >= 6
        demo.send_signal(number)
        code = demo.wait(60)
        wait_until(lambda: not _processes_with(str(tmp_path)), f"all are gone: {_processes_with(str(tmp_path))}")
        assert code == (-number if number is signal.SIGKILL else 128 + number)
    finally:
        demo.kill()
        demo.wait()


@pytest.mark.crash
@pytest.mark.timeout(900)
@pytest.mark.skipif(not is_offered(), reason="there is no PostgreSQL to fetch for this machine")
def test_the_demo_comes_to_its_pass_on_postgresql() -> None:
    assert run_demo(postgres=True) == 0
