"""What an Iceberg sink refuses before anything is read: arguments, tables, and columns that do not fit."""

import pickle
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import IntegerType, LongType, NestedField, StringType, StructType, TimeType, UUIDType

from onceward import IcebergSink
from onceward.common.errors import ConfigurationError, PreflightError
from onceward.connections.storage import LocalStorage
from onceward.connectors.interfaces import Finding
from onceward.coordinator.service.kinds import part
from onceward.protocol.kinds import NamedSystem
from onceward.protocol.values import Outcome
from onceward.sinks.iceberg import rest
from onceward.sinks.iceberg.catalog import CatalogTable, table_of
from onceward.sinks.iceberg.control.system import IcebergSystem
from onceward.sinks.iceberg.kind import ICEBERG
from tests.unit.sinks.delta.test_sink import CONTEXT
from tests.unit.sinks.iceberg.tables import NAME, Table, sqlite_catalog
from tests.unit.sinks.iceberg.test_committing import change_metadata


def found(table: Table) -> list[Finding]:
    return [*table.sink().connect(CONTEXT).preflight()]


# -- arguments


def test_every_invalid_argument_is_in_one_message() -> None:
    with pytest.raises(ConfigurationError) as error:
        IcebergSink("orders", catalog={}, name="Not a name")
    for part_of in ("table: 'orders'", "catalog: give the settings", "name: 'Not a name'"):
        assert part_of in str(error.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("token", "geheim"),
        ("credential", "client:geheim"),
        ("s3.secret-access-key", "geheim"),
        ("uri", "postgresql+psycopg://onceward:geheim@db/catalog"),
        ("header.Authorization", "Bearer geheim"),
    ],
)
def test_a_secret_is_given_by_reference_and_never_shown(key: str, value: str) -> None:
    settings = {"type": "rest", "uri": "http://localhost", key: value}
    with pytest.raises(ConfigurationError, match=f"catalog {key}: is or holds a secret") as error:
        IcebergSink(NAME, catalog=settings)
    assert "geheim" not in str(error.value)


def test_a_reference_is_resolved_where_the_catalogue_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = sqlite_catalog(tmp_path)
    Table(settings)
    file = tmp_path / "uri"
    file.write_text(settings["uri"] + "\n")
    for reference in (f"file:{file}", "env:CATALOG"):
        table = CatalogTable.of(NAME, {**settings, "uri": reference})
        assert settings["uri"] not in repr(table)
        if reference.startswith("env:"):
            with pytest.raises(ConfigurationError, match="CATALOG, unset or empty"):
                table.catalog()
            monkeypatch.setenv("CATALOG", settings["uri"])
        assert table.catalog().load_table(NAME).name() == ("shop", "orders")


def test_plain_settings_are_taken_as_they_are(tmp_path: Path) -> None:
    settings = {
        **sqlite_catalog(tmp_path),
        "token-refresh-enabled": "true",
        "oauth2-server-uri": "https://login/token",
        "s3.access-key-id": "file:/key",
    }
    assert dict(CatalogTable.of(NAME, settings).settings) == settings


def test_a_sink_is_imported_and_made_without_the_library() -> None:
    """A program may construct it where the extra is not installed; the error says what to install."""
    code = (
        "import sys; sys.modules['pyiceberg'] = None\n"
        "from datetime import timedelta\n"
        "from onceward import IcebergSink\n"
        "from onceward.connectors import JobContext, JobName\n"
        "sink = IcebergSink('a.b', catalog={'type': 'sql'})\n"
        "try: sink.connect(JobContext(job=JobName('a'), checkpoint_timeout=timedelta(1)))\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.startswith("ConfigurationError IcebergSink needs pyiceberg")
    assert "pip install 'onceward[iceberg]'" in ran.stdout


def test_a_writer_is_pickled_small_and_knows_no_catalogue(tmp_path: Path) -> None:
    settings = sqlite_catalog(tmp_path)
    pickled = pickle.dumps(Table(settings).sink().connect(CONTEXT).write())
    assert len(pickled) < 2000
    assert settings["uri"].encode() not in pickled


# -- tables


def test_a_table_that_does_not_exist_is_not_created_and_the_message_says_how(tmp_path: Path) -> None:
    for _ in range(2):
        with pytest.raises(PreflightError, match=r"create_table\('shop\.orders'.*schema\(") as error:
            IcebergSink(NAME, catalog=sqlite_catalog(tmp_path)).connect(CONTEXT)
    assert "This sink creates none" in str(error.value)


def test_a_catalogue_that_does_not_answer_is_found(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match="could not be read or written"):
        IcebergSink(NAME, catalog={"type": "rest", "uri": "http://127.0.0.1:1"}).connect(CONTEXT)


def test_a_catalogue_that_never_answers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library waits for it without a limit."""
    monkeypatch.setattr(rest, "LIMIT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(PreflightError, match="Read timed out"):
            IcebergSink(NAME, catalog={"uri": uri}).connect(CONTEXT)


def test_a_plain_table_has_no_findings_and_is_left_as_it_is(tmp_path: Path) -> None:
    table = Table(sqlite_catalog(tmp_path))
    assert found(table) == []
    assert table.now().snapshots() == []
    assert [one for one in table.path.rglob("*") if one.is_file() and one.parent.name != "metadata"] == []


def test_a_table_of_version_3_is_refused_with_the_librarys_issue(tmp_path: Path) -> None:
    table = Table(sqlite_catalog(tmp_path))
    change_metadata(table, '"format-version":2', '"format-version":3,"next-row-id":0')
    with pytest.raises(PreflightError, match=r"format version 3.*apache/iceberg-python#1551"):
        table.sink().connect(CONTEXT)


def test_a_table_of_version_1_is_written(tmp_path: Path) -> None:
    table = Table(sqlite_catalog(tmp_path), properties={"format-version": "1"})
    assert table.now().metadata.format_version == 1
    with table.jobs() as jobs:
        driver = jobs.driver()
        driver.commits(driver.prepared([b"a"]))
    assert table.values() == [b"a"]


@pytest.mark.parametrize(
    ("schema", "options", "said"),
    [
        (Schema(NestedField(1, "u", UUIDType(), required=False)), {}, "its column u is uuid"),
        (
            Schema(NestedField(1, "s", StructType(NestedField(2, "t", TimeType(), required=False)), required=False)),
            {},
            "its column s.t is time",
        ),
        (
            Schema(NestedField(1, "s", StructType(NestedField(2, "a-b", LongType(), required=False)), required=False)),
            {},
            "s.a-b, nested in a column, has another name",
        ),
        (
            Schema(NestedField(1, "v", LongType(), required=False)),
            {"properties": {"write.format.default": "orc"}},
            "its files are orc",
        ),
    ],
)
def test_what_the_sink_cannot_write_is_named(tmp_path: Path, schema: Schema, options: Any, said: str) -> None:
    (one,) = found(Table(sqlite_catalog(tmp_path), schema, **options))
    assert said in one.message


def test_a_table_in_a_place_that_is_not_reached_is_refused(tmp_path: Path) -> None:
    table = Table(sqlite_catalog(tmp_path))
    change_metadata(table, f'"location":"{table.now().location()}"', '"location":"gs://bucket/orders"')
    with pytest.raises(PreflightError, match="in S3 and in directories are supported"):
        table.sink().connect(CONTEXT)


def test_a_directory_that_cannot_be_written_is_found(tmp_path: Path) -> None:
    table = Table(sqlite_catalog(tmp_path))
    (table.path / "_onceward").write_text("a file where the sink keeps its own")
    (one,) = found(table)
    assert "its directory cannot be written" in one.message


def test_a_storage_that_creates_a_file_twice_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalStorage, "create", lambda *_: True)
    (one,) = found(Table(sqlite_catalog(tmp_path)))
    assert "two drivers could own the job" in one.message


# -- columns


def test_every_column_that_does_not_fit_is_named_in_one_message(tmp_path: Path) -> None:
    schema = Schema(
        NestedField(1, "id", LongType(), required=True),
        NestedField(2, "Name", StringType(), required=False),
        NestedField(3, "s", StructType(NestedField(4, "x", IntegerType(), required=False)), required=False),
    )
    session = Table(sqlite_catalog(tmp_path), schema).sink().connect(CONTEXT)
    with pytest.raises(ConfigurationError) as error:
        session.choose([("name", "int"), ("NAME", "string"), ("s", "struct<x:bigint>"), ("more", "int")])
    problems = [line.strip(" -") for line in str(error.value).splitlines()[1:]]
    assert [problem.partition(":")[0] for problem in problems] == ["more", "id", "Name", "s"]
    chosen = session.choose([("S", "struct<x:int>"), ("ID", "int")])
    assert [(one.column, one.name) for one in chosen] == [("ID", "id"), ("S", "s")]


# -- systems


def test_a_coordinator_opens_a_table_of_its_systems_file(tmp_path: Path) -> None:
    table = Table(sqlite_catalog(tmp_path))
    with table.jobs() as jobs:
        driver = jobs.driver()
        made = driver.prepared([b"a"])
        named = NamedSystem(kind="iceberg", configuration=table_of("lake", {"table": NAME, "catalog": table.settings}))
        system = part("iceberg", ICEBERG.system, "ended")(named.configuration, generation=lambda: 2)
        assert isinstance(system, IcebergSystem)
        assert [one.outcome for one in system.commit(driver.author, made)] == [Outcome.COMMITTED]
    assert table.values() == [b"a"]
    with pytest.raises(ConfigurationError, match="unknown: tabel"):
        table_of("lake", {"tabel": "x"})


def test_a_coordinator_checks_a_document_without_the_library(tmp_path: Path) -> None:
    table = Table(sqlite_catalog(tmp_path))
    with table.jobs() as jobs:
        driver = jobs.driver()
        (made,) = driver.prepared([b"a"])
        check = part("iceberg", ICEBERG.documents["iceberg-files"], "checked")
        check(made.document, None, driver.author)
        for wrong in ({"job": "other"}, {"files": [{"name": "x"}]}, {"transaction": "x"}, {"files": None}):
            body = {**made.document.body, **wrong}
            with pytest.raises(ValueError, match=r"it names|it lacks|invalid literal"):
                check(type(made.document)(kind="iceberg-files", version=1, body=body), None, driver.author)
    code = "import sys; import onceward.sinks.iceberg.documents; print('pyiceberg' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout == "False\n"


def test_a_systems_file_is_read_without_the_library() -> None:
    code = "import sys; import onceward.sinks.iceberg.catalog; print({'pyiceberg', 'pyarrow'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout == "set()\n"
