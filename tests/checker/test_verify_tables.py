"""``onceward verify`` on tables that a real job has written beside each other, called as a user calls it."""

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog import load_catalog
from typer.testing import CliRunner

from onceward import CheckpointSettings, DeltaSink, IcebergSink, KafkaSource, Output, PostgresSink
from onceward.dev.postgres.server import LocalPostgres
from onceward.operate.cli import app
from tests.support.database import Database, database_on
from tests.support.shared_kafka import SharedKafka
from tests.support.sparkless import SparklessPipeline
from tests.support.topics import Topics

pytestmark = pytest.mark.timeout(300)

RECORDS = 60
"""Per input partition, of two; each partition has keys of its own."""
KEYS = 5
COLUMNS = pa.schema([("key", pa.binary()), ("value", pa.binary())])


class Tables:
    """A finished job that has copied a topic to two tables of PostgreSQL, one of Delta, and one of Iceberg."""

    def __init__(self, job: str, topics: Topics, database: Database, directory: Path) -> None:
        self.job, self.topics, self.database, self.directory = job, topics, database, directory
        self.lake = directory / "lake"
        self.source = topics.create("in", 2)
        for partition in range(2):
            values = [b"%d-%d" % (partition, number) for number in range(RECORDS)]
            for number, value in enumerate(values):
                topics.fill(self.source, [value], partition=partition, key=b"%d-%d" % (partition, number % KEYS))
        database.run(
            "CREATE TABLE lines (key bytea, value bytea)", "CREATE TABLE latest (key bytea PRIMARY KEY, value bytea)"
        )
        DeltaTable.create(self.lake, COLUMNS)
        catalog = {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}/ice"}
        with closing(load_catalog("default", **catalog)) as opened:
            opened.create_namespace("shop")
            opened.create_table("shop.lines", COLUMNS)
        settings = ", ".join(f'{name} = "{value}"' for name, value in catalog.items())
        (directory / "systems.toml").write_text(
            f'[systems.shop]\nkind = "postgres"\ndsn = "{database.dsn}"\n'
            f'[systems.lake]\nkind = "delta"\ntable = "{self.lake}"\n'
            f'[systems.ice]\nkind = "iceberg"\ntable = "shop.lines"\ncatalog = {{ {settings} }}\n'
            f'[systems.copy]\nkind = "delta"\ntable = "{directory / "copy"}"\n'
        )
        (directory / "wanted.py").write_text(
            "def rows(topic, key, value):\n    return [{'key': key, 'value': value}]\n"
        )
        SparklessPipeline(
            job=job,
            source=KafkaSource(
                topics.servers, topics=[self.source], start="earliest", end="latest", max_offsets_per_checkpoint=50
            ),
            outputs={
                "lines": Output(PostgresSink(database.dsn, "lines")),
                "latest": Output(PostgresSink(database.dsn, "latest", mode="upsert", key=["key"])),
                "lake": Output(DeltaSink(self.lake)),
                "ice": Output(IcebergSink("shop.lines", catalog=catalog)),
            },
            settings=CheckpointSettings(interval="50ms", num_retained=1000),
            state_dir=directory / "state",
        ).run()

    def verify(self, output: str, *more: str) -> tuple[int, dict[str, Any]]:
        """The exit code, and the output of --json."""
        about = ["--job", self.job, "--servers", self.topics.servers, "--input", self.source]
        where = ["--systems", str(self.directory / "systems.toml"), "--state-dir", str(self.directory / "state")]
        ran = CliRunner().invoke(
            app, ["verify", *about, *where, "--output", output, "--json", "--expected-by", "wanted:rows", *more]
        )
        assert ran.exception is None or isinstance(ran.exception, SystemExit), ran.exception
        return ran.exit_code, json.loads(ran.stdout)


def broken(said: dict[str, Any]) -> dict[str, str]:
    return {
        name: "; ".join(result["evidence"])
        for name, result in said["properties"].items()
        if result["verdict"] == "FAIL"
    }


@pytest.fixture(scope="module")
def tables(kafka: SharedKafka, postgres: LocalPostgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    name = f"verify-{os.urandom(3).hex()}"
    with database_on(postgres, name) as database:
        yield Tables(name, Topics(kafka.bootstrap_servers, name), database, tmp_path_factory.mktemp("verify"))


@pytest.fixture(autouse=True)
def beside_the_users_module(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tables.directory)


def test_right_tables_pass(tables: Tables) -> None:
    for output in ("shop:lines", "lake", "ice"):
        code, said = tables.verify(output)
        assert (code, said["verdict"]) == (0, "PASS"), said
        assert said["records"] == {"expected": 2 * RECORDS, "visible": 2 * RECORDS}
    code, said = tables.verify("shop:latest", "--key", "key")
    assert (code, said["verdict"]) == (0, "PASS"), said
    assert said["records"] == {"expected": 2 * KEYS, "visible": 2 * KEYS}


def test_rows_that_are_replaced_do_not_pass_as_rows_that_are_appended(tables: Tables) -> None:
    code, said = tables.verify("shop:latest")
    assert (code, {*broken(said)}) == (1, {"nothing lost"})


def test_a_lost_and_a_double_row_of_postgres_are_named(tables: Tables) -> None:
    tables.database.run(
        "CREATE TABLE broken AS SELECT * FROM lines WHERE value <> '0-7'",
        "INSERT INTO broken SELECT * FROM lines WHERE value = '1-9'",
    )
    code, said = tables.verify("shop:public.broken", "--by", "value")
    found = broken(said)
    assert (code, {*found}) == (1, {"nothing lost", "nothing twice"})
    assert f"{tables.source}-0 offset 7 of checkpoint" in found["nothing lost"]
    assert f"public.broken: value=x'{b'1-9'.hex()}'" in found["nothing twice"]


def test_a_row_that_was_not_replaced_is_a_loss(tables: Tables) -> None:
    tables.database.run(
        "CREATE TABLE stale AS SELECT * FROM latest", "UPDATE stale SET value = '1-2' WHERE key = '1-2'"
    )
    code, said = tables.verify("shop:stale", "--key", "key")
    assert (code, {*broken(said)}) == (1, {"nothing lost"})
    assert f"{tables.source}-1 offset {RECORDS - KEYS + 2} of" in broken(said)["nothing lost"]


def test_a_row_that_another_program_appends_to_a_delta_table_fails(tables: Tables) -> None:
    copy = shutil.copytree(tables.lake, tables.directory / "copy")
    write_deltalake(copy, pa.table({"key": [b"k"], "value": [b"0-7"]}, COLUMNS), mode="append")
    code, said = tables.verify("copy")
    assert (code, {*broken(said)}) == (1, {"nothing foreign"})
    assert {*broken(tables.verify("copy", "--by", "value")[1])} == {"nothing twice"}


def test_the_last_row_of_a_key_from_two_partitions_is_unknown(tables: Tables) -> None:
    (tables.directory / "constant.py").write_text(
        "def rows(topic, key, value):\n    return [{'key': b'all', 'value': value}]\n"
    )
    tables.database.run("CREATE TABLE one AS SELECT 'all'::bytea AS key, value FROM latest WHERE value = '1-59'")
    asked = ("shop:one", "--key", "key", "--expected-by", "constant:rows")
    code, said = tables.verify(*asked)
    assert (code, said["properties"]["nothing lost"]["verdict"]) == (10, "UNKNOWN"), said
    assert "1 keys come from several input partitions" in said["properties"]["nothing lost"]["evidence"][0]
    assert tables.verify(*asked, "--no-order")[0] == 0
