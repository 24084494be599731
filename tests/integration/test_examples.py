"""The examples do what they promise, as a person runs them: ``python examples/NAME.py`` against a broker.

Only the broker's address differs from the file. No two examples have a topic in common.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyiceberg.catalog import load_catalog

from onceward.common.killpoints import KILL_POINT_VARIABLE, KillPoint
from onceward.dev.kafka import LocalKafka
from onceward.dev.kafka.topics import make_topics
from onceward.dev.postgres.server import LocalPostgres
from tests.support.commands import onceward
from tests.support.processes import Process, free_address, spark_variables
from tests.support.topics import Topics
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ONCEWARD = str(Path(sys.executable).with_name("onceward"))
ADDRESS_OF_THE_EXAMPLES = "localhost:9092"
LIMIT_S = 600.0
"""Limit for any step: the machine may be busy."""


def start(name: str, servers: str, directory: Path, **environment: str) -> Process:
    program = directory / name
    program.write_text((EXAMPLES / name).read_text().replace(ADDRESS_OF_THE_EXAMPLES, servers))
    return Process(
        [sys.executable, str(program)], directory / "log", {**spark_variables(directory), **environment}, directory
    )


@contextmanager
def running(name: str, servers: str, directory: Path, **environment: str) -> Iterator[Process]:
    """The example, stopped with Ctrl-C at the end, which must succeed."""
    process = start(name, servers, directory, **environment)
    try:
        yield process
        process.send(signal.SIGINT)
        assert process.wait(LIMIT_S) == 0, process.tail()
    finally:
        process.end()


def wait_for_output(topics: Topics, names: list[str], records: int, process: Process) -> None:
    wait_until(
        lambda: sum(len(topics.values(name)) for name in names) >= records or not process.running,
        f"{names} hold {records} records",
        LIMIT_S,
    )
    assert process.running, process.tail()


def values(topics: Topics, name: str) -> list[bytes]:
    """The values that a ``read_committed`` reader sees, sorted."""
    return sorted(value or b"" for value in topics.values(name))


def test_first_job_copies_every_order_once(topics: Topics, tmp_path: Path) -> None:
    made = onceward("dev", "topic", "orders", "orders-eur", "--servers", topics.servers, "--partitions", "2")
    assert made.returncode == 0, made.stderr
    topics.fill("orders", [b"order %d" % number for number in range(500)] + [None])
    with running("first_job.py", topics.servers, tmp_path) as process:
        wait_for_output(topics, ["orders-eur"], 500, process)
    assert values(topics, "orders-eur") == sorted(b"order %d" % number for number in range(500))


def test_batches_converts_every_payment_once(topics: Topics, tmp_path: Path) -> None:
    make_topics(topics.servers, ["payments", "payments-eur"], partitions=2, replicas=1)
    topics.fill("payments", [b"%d.50" % number for number in range(500)], key=b"customer")
    with running("batches.py", topics.servers, tmp_path) as process:
        wait_for_output(topics, ["payments-eur"], 500, process)
    # N.50 dollars at 0.92 are 0.92 N + 0.46 euros
    assert values(topics, "payments-eur") == sorted(b"%.2f" % ((92 * number + 46) / 100) for number in range(500))


def test_routing_puts_every_reading_in_one_topic_and_keeps_dead_letters_as_they_came(
    topics: Topics, tmp_path: Path
) -> None:
    make_topics(topics.servers, ["readings", "valid-readings", "rejected-readings"], partitions=2, replicas=1)
    good = [json.dumps({"sensor": f"s{number}", "celsius": number / 10}).encode() for number in range(500)]
    bad = {b"{": b"not a reading", b'{"sensor": "s"}': b"not a reading", b"": b"not a reading"}
    cold = b'{"sensor": "s", "celsius": -300.0}'
    bad[cold] = b"below absolute zero"
    topics.fill("readings", [*good, *bad])
    with running("routing.py", topics.servers, tmp_path) as process:
        wait_for_output(topics, ["valid-readings", "rejected-readings"], len(good) + len(bad), process)
    assert values(topics, "valid-readings") == sorted(good)
    assert values(topics, "rejected-readings") == sorted(bad)
    found = {message.value(): message.headers() for message in topics.messages("rejected-readings")}
    assert found == {value: [("reason", reason)] for value, reason in bad.items()}


def test_dead_letters_sets_ten_invoices_of_200_000_apart_and_lists_them(topics: Topics, tmp_path: Path) -> None:
    make_topics(topics.servers, ["invoices", "invoices-eur", "invoices-dead"], partitions=2, replicas=1)
    bad = [b"{", b"", b'{"cents": "many"}', b"{}", b"[]", b"null", b"7", b"cents", b'{"cents": null}', b'{"Cents": 1}']
    half = [b'{"cents": %d}' % number for number in range(99_995)]
    for partition in range(2):
        topics.fill("invoices", [*half, *bad[partition::2]], partition=partition)
    with running("dead_letters.py", topics.servers, tmp_path) as process:
        wait_for_output(topics, ["invoices-eur", "invoices-dead"], 200_000, process)
        of_this_job = ("--servers", topics.servers, "--state-dir", str(tmp_path / ".onceward"))
        listed = onceward("letters", "invoices", *of_this_job, "--json")
    assert listed.returncode == 0, listed.stderr
    assert sum(one["letters"] for one in json.loads(listed.stdout)["reasons"]) == len(bad)
    assert values(topics, "invoices-dead") == sorted(bad)
    assert values(topics, "invoices-eur") == sorted(2 * [b"%d.%02d" % divmod(number, 100) for number in range(99_995)])


def test_outputs_keeps_a_table_current_and_copies_big_orders(
    topics: Topics, postgres: LocalPostgres, tmp_path: Path
) -> None:
    make_topics(topics.servers, ["order-changes", "big-orders"], partitions=2, replicas=1)
    with psycopg.connect(postgres.url, autocommit=True) as shop:
        shop.execute("CREATE TABLE shop_orders (order_id text PRIMARY KEY, amount bigint)")
        try:
            with running("outputs.py", topics.servers, tmp_path, SHOP_DSN=postgres.url) as process:
                for amount in (990, 1010):
                    for number in range(20):
                        value = json.dumps({"amount": amount + number}).encode()
                        topics.fill("order-changes", [value], partition=number % 2, key=b"%d" % number)
                for number in range(5):
                    topics.fill("order-changes", [None], partition=number % 2, key=b"%d" % number)
                wait_for_output(topics, ["big-orders"], 30, process)
                wait_until(
                    lambda: shop.execute("SELECT count(*) FROM shop_orders").fetchone() == (15,),
                    "the table has the orders that are left",
                    LIMIT_S,
                )
            found = shop.execute("SELECT order_id, amount FROM shop_orders").fetchall()
        finally:
            shop.execute("DROP TABLE shop_orders")
    assert sorted(found) == sorted((str(number), 1010 + number) for number in range(5, 20))
    big = [990 + number for number in range(10, 20)] + [1010 + number for number in range(20)]
    assert values(topics, "big-orders") == sorted(b"%d" % amount for amount in big)


def test_lake_has_every_order_once_in_three_systems_when_it_is_killed(
    topics: Topics, postgres: LocalPostgres, tmp_path: Path
) -> None:
    make_topics(topics.servers, ["purchases", "large-purchases"], partitions=2, replicas=1)
    orders = [
        {"id": number, "amount": number * 7 + 0.5, "at": f"2026-01-05T08:{number % 60:02}:00Z"} for number in range(200)
    ]
    for order in orders:
        value, number = json.dumps(order).encode(), int(str(order["id"]))
        topics.fill("purchases", [value, b"no order"], partition=number % 2, key=b"customer %d" % (number % 10))
    with psycopg.connect(postgres.url, autocommit=True) as shop:
        columns = "customer text PRIMARY KEY, last_order bigint, amount numeric(12, 2), at timestamptz"
        shop.execute(f"CREATE TABLE customers ({columns})".encode())
        try:
            killed = {"SHOP_DSN": postgres.url, KILL_POINT_VARIABLE: KillPoint.DRIVER_BETWEEN_END_TXN.value}
            process = start("lake.py", topics.servers, tmp_path, **killed)
            try:
                assert process.wait(LIMIT_S) == 128 + signal.SIGKILL, process.tail()
            finally:
                process.end()
            with running("lake.py", topics.servers, tmp_path, SHOP_DSN=postgres.url) as process:
                wait_for_output(topics, ["large-purchases"], 57, process)
                wait_until(
                    lambda: shop.execute("SELECT max(last_order) FROM customers").fetchone() == (199,),
                    "the last order is there",
                    LIMIT_S,
                )
            last = shop.execute("SELECT customer, last_order FROM customers ORDER BY 2").fetchall()
        finally:
            shop.execute("DROP TABLE customers")
    assert last == [(f"customer {number % 10}", number) for number in range(190, 200)]
    assert values(topics, "large-purchases") == sorted(json.dumps(one).encode() for one in orders[143:])
    lake = tmp_path / "lake"
    catalog = load_catalog(
        "default", type="sql", uri=f"sqlite:///{lake}/catalog.sqlite", warehouse=f"file://{lake}/warehouse"
    )
    found = catalog.load_table("shop.orders").scan().to_arrow().to_pylist()
    assert sorted((row["id"], row["customer"], str(row["amount"])) for row in found) == [
        (number, f"customer {number % 10}", f"{number * 7}.50") for number in range(200)
    ]


def lines(directory: Path) -> list[str]:
    """The content of the visible files, sorted."""
    return sorted(line for file in directory.glob("[!.]*") for line in file.read_text().splitlines())


def test_custom_sink_adds_every_order_once_when_killed_before_between_and_after_the_two_phases(
    topics: Topics, tmp_path: Path
) -> None:
    make_topics(topics.servers, ["new-orders"], partitions=2, replicas=1)
    topics.fill("new-orders", [b"order %d" % number for number in range(500)])
    orders = sorted(f"order {number}" for number in range(500))
    after_the_kill = {
        KillPoint.DRIVER_AFTER_PRE_COMMIT: [],  # undecided: the next start deletes the files, and reads again
        KillPoint.DRIVER_AFTER_DECISION: [],  # completed: the next start commits them
        KillPoint.DRIVER_AFTER_END_TXN: orders,  # committed, but not on record: the next start commits them again
    }
    for point, visible in after_the_kill.items():
        process = start("custom_sink.py", topics.servers, tmp_path, **{KILL_POINT_VARIABLE: point.value})
        try:
            assert process.wait(LIMIT_S) == 128 + signal.SIGKILL, process.tail()
        finally:
            process.end()
        assert lines(tmp_path / "orders") == visible, point
    topics.fill("new-orders", [b"late"])
    with running("custom_sink.py", topics.servers, tmp_path) as process:
        wait_until(lambda: "late" in lines(tmp_path / "orders") or not process.running, "the last order", LIMIT_S)
    assert lines(tmp_path / "orders") == sorted([*orders, "late"])
    assert not list((tmp_path / "orders" / ".staged").glob("*.*.*.*.*")), "staged files are left"


def test_custom_source_copies_every_line_once_when_it_is_killed(topics: Topics, tmp_path: Path) -> None:
    make_topics(topics.servers, ["log-lines"], partitions=2, replicas=1)
    logs = tmp_path / "logs"
    logs.mkdir()
    wanted = sorted(b"%s line %d" % (name, number) for name in (b"a", b"b") for number in range(250))
    for name in ("a", "b"):
        written = "".join(f"{name} line {number}\n{name} DEBUG {number}\n" for number in range(250))
        (logs / f"{name}.log").write_text(written + "not whole")
    process = start(
        "custom_source.py", topics.servers, tmp_path, **{KILL_POINT_VARIABLE: KillPoint.DRIVER_AFTER_DECISION.value}
    )
    try:
        assert process.wait(LIMIT_S) == 128 + signal.SIGKILL, process.tail()
    finally:
        process.end()
    with running("custom_source.py", topics.servers, tmp_path) as process:
        wait_for_output(topics, ["log-lines"], 500, process)
        (logs / "c.log").write_text("late\n")
        wait_for_output(topics, ["log-lines"], 501, process)
    assert values(topics, "log-lines") == sorted([*wanted, b"late"])


PASSWORD = "of this test"
ASKS_FOR_THE_PASSWORD = {
    "listener.security.protocol.map": "CLIENT:SASL_PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "listener.name.client.sasl.enabled.mechanisms": "PLAIN",
    "listener.name.client.plain.sasl.jaas.config": (
        f'org.apache.kafka.common.security.plain.PlainLoginModule required user_onceward="{PASSWORD}";'
    ),
}
ADDRESS_OF_THE_COORDINATOR = "localhost:7878"


class Cluster:
    """The directory ``examples/cluster``, moved to other addresses, and its processes."""

    def __init__(self, servers: str, directory: Path, cleanup: ExitStack) -> None:
        self._directory, self._cleanup = directory, cleanup
        self.coordinator = free_address()
        for name in ("clusters.toml", "copy_topic.py"):
            text = (EXAMPLES / "cluster" / name).read_text().replace(ADDRESS_OF_THE_EXAMPLES, servers)
            (directory / name).write_text(text.replace(ADDRESS_OF_THE_COORDINATOR, self.coordinator))

    def serve(self) -> Process:
        here = self._directory
        places = [f"--store=sqlite:///{here / 'coordinator.db'}", f"--clusters={here / 'clusters.toml'}"]
        return self._start("coordinator.log", ONCEWARD, "serve", "--listen", self.coordinator, *places)

    def copy(self, topic: str, *, kill_at: KillPoint | None = None) -> Process:
        armed = {} if kill_at is None else {KILL_POINT_VARIABLE: kill_at.value}
        return self._start(f"{topic}.log", sys.executable, str(self._directory / "copy_topic.py"), topic, **armed)

    def jobs(self) -> dict[str, dict[str, Any]]:
        command = [ONCEWARD, "jobs", "--json", "--coordinator", self.coordinator]
        listed = subprocess.run(command, capture_output=True, text=True, check=False)
        return {job["job"]: job for job in json.loads(listed.stdout)} if listed.returncode == 0 else {}

    def _start(self, log: str, *command: str, **environment: str) -> Process:
        given = {"KAFKA_PASSWORD": PASSWORD, **spark_variables(self._directory), **environment}
        process = Process(command, self._directory / log, given)
        self._cleanup.callback(process.end)
        return process


def test_a_coordinator_serves_two_jobs_and_ends_the_transactions_of_one_that_died(tmp_path: Path) -> None:
    with ExitStack() as cleanup:
        kafka = cleanup.enter_context(LocalKafka(properties=ASKS_FOR_THE_PASSWORD))
        topics = Topics(kafka.internal_servers, "reader")
        make_topics(topics.servers, ["clicks", "clicks-copy", "views", "views-copy"], partitions=2, replicas=1)
        given = sorted(b"%d" % number for number in range(500))
        for name in ("clicks", "views"):
            topics.fill(name, given)
        cluster = Cluster(kafka.bootstrap_servers, tmp_path, cleanup)
        coordinator = cluster.serve()

        dying = cluster.copy("clicks", kill_at=KillPoint.DRIVER_AFTER_DECISION)
        wait_until(lambda: not dying.running, "the job dies between decision and commit", LIMIT_S)
        assert values(topics, "clicks-copy") == [], dying.tail()
        wait_until(lambda: values(topics, "clicks-copy") == given, "the coordinator commits for the job", LIMIT_S)

        jobs = [cluster.copy("clicks"), cluster.copy("views")]
        wait_for_output(topics, ["views-copy"], 500, jobs[1])
        topics.fill("clicks", given)
        wait_for_output(topics, ["clicks-copy"], 1000, jobs[0])
        assert {name: job["status"] for name, job in cluster.jobs().items()} == {
            "copy-clicks": "running",
            "copy-views": "running",
        }
        for process in [*jobs, coordinator]:
            process.send(signal.SIGINT)
            assert process.wait(LIMIT_S) == 0, process.tail()
        assert values(topics, "views-copy") == given
        assert values(topics, "clicks-copy") == sorted(given * 2)
