"""What a Delta sink refuses before anything is read: arguments, tables, and columns that do not fit."""

import json
import pickle
import subprocess
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field, QueryBuilder, Schema
from deltalake.schema import PrimitiveType
from pyspark.sql.types import StructType

from onceward import DeltaSink
from onceward.common.errors import ConfigurationError, PreflightError
from onceward.connections.storage import LocalStorage
from onceward.connectors.interfaces import Finding, JobContext
from onceward.coordinator.service.kinds import part
from onceward.protocol.kinds import NamedSystem
from onceward.protocol.values import JobName, Outcome
from onceward.sinks.delta.control.system import DeltaSystem
from onceward.sinks.delta.control.table import LoadedTable
from onceward.sinks.delta.driver import preflight
from onceward.sinks.delta.driver.columns import choose
from onceward.sinks.delta.kind import DELTA
from onceward.sinks.delta.location import location_of
from onceward.sinks.lake.driver.types import spark_type
from tests.unit.sinks.delta.tables import Table
from tests.unit.sinks.delta.test_writer import EVERY_TYPE

CONTEXT = JobContext(job=JobName("orders"), checkpoint_timeout=timedelta(minutes=2))


def found(path: Path) -> list[Finding]:
    session = DeltaSink(path).connect(CONTEXT)
    return [*session.preflight()]


def change_log(path: Path, **changes: Mapping[str, Any]) -> None:
    """Change actions of the table's first entry, as another writer would have made the table."""
    log = path / "_delta_log" / f"{0:020}.json"
    lines = []
    for line in log.read_text().splitlines():
        ((action, body),) = json.loads(line).items()
        lines.append(json.dumps({action: {**body, **changes.get(action, {})}}))
    log.write_text("\n".join(lines))


# -- arguments


def test_every_invalid_argument_is_in_one_message() -> None:
    with pytest.raises(ConfigurationError) as error:
        DeltaSink("", name="Not a name")
    assert "table: ''" in str(error.value)
    assert "name: 'Not a name'" in str(error.value)
    with pytest.raises(ConfigurationError, match="no others yet"):
        DeltaSink("gs://bucket/table")


def test_a_sink_is_imported_and_made_without_the_library() -> None:
    """A program may construct it where the extra is not installed; the error says what to install."""
    code = (
        "import sys; sys.modules['deltalake'] = None\n"
        "from datetime import timedelta\n"
        "from onceward import DeltaSink\n"
        "from onceward.connectors import JobContext, JobName\n"
        "sink = DeltaSink('/tmp/none')\n"
        "try: sink.connect(JobContext(job=JobName('a'), checkpoint_timeout=timedelta(1)))\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout.startswith("ConfigurationError DeltaSink needs deltalake")
    assert "pip install 'onceward[delta]'" in ran.stdout


def test_a_writer_is_pickled_small(tmp_path: Path) -> None:
    session = DeltaSink(Table(tmp_path / "table").path).connect(CONTEXT)
    assert len(pickle.dumps(session.write())) < 2000


# -- tables


def test_a_table_that_does_not_exist_is_not_created_and_the_message_says_how(tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match=r"DeltaTable\.create\(.*schema\(") as error:
        DeltaSink(tmp_path / "none").connect(CONTEXT)
    assert "this sink creates none" in str(error.value)
    assert not (tmp_path / "none").exists()


def test_a_plain_table_has_no_findings_and_is_left_as_it_is(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    assert found(table.path) == []
    assert table.now().version() == 0
    assert not [one for one in table.path.rglob("*") if one.is_file() and one.parent.name != "_delta_log"]


@pytest.mark.parametrize(
    ("configuration", "said"),
    [
        ({"delta.columnMapping.mode": "name"}, "delta.columnMapping.mode"),
        ({"delta.constraints.positive": "v > 0"}, "constraint positive"),
        ({"delta.setTransactionRetentionDuration": "interval 7 days"}, "the proof of a commit expires"),
    ],
)
def test_a_table_with_rules_that_the_sink_does_not_keep_is_refused(
    tmp_path: Path, configuration: dict[str, str], said: str
) -> None:
    table = Table(tmp_path / "table")
    change_log(table.path, metaData={"configuration": configuration})
    (one,) = found(table.path)
    assert said in one.message


@pytest.mark.parametrize(
    "feature", ["rowTracking", "icebergCompatV1", "columnMapping", "typeWidening", "domainMetadata"]
)
def test_a_writer_feature_that_the_sink_does_not_keep_to_is_named(tmp_path: Path, feature: str) -> None:
    table = Table(tmp_path / "table")
    reading = (
        {"minReaderVersion": 3, "readerFeatures": [feature]} if feature in ("columnMapping", "typeWidening") else {}
    )
    features = {"minWriterVersion": 7, "writerFeatures": ["appendOnly", feature], **reading}
    change_log(table.path, protocol=features)
    (one,) = found(table.path)
    assert f"writer features {feature}," in one.message


@pytest.mark.parametrize(
    "metadata",
    [{"delta.invariants": '{"expression": {"expression": "v > 0"}}'}, {"delta.generationExpression": "1"}],
)
def test_a_column_with_a_rule_of_its_own_is_named(tmp_path: Path, metadata: dict[str, str]) -> None:
    path = tmp_path / "table"
    Table(path)
    schema = {"type": "struct", "fields": [{"name": "v", "type": "long", "nullable": True, "metadata": metadata}]}
    change_log(path, metaData={"schemaString": json.dumps(schema)})
    (one,) = found(path)
    assert "its column v has" in one.message


def test_a_partition_column_of_a_type_that_is_not_written_is_named(tmp_path: Path) -> None:
    schema = pa.schema([("v", pa.int64()), ("day", pa.string()), ("x", pa.float64())])
    (one,) = found(Table(tmp_path / "table", schema, partition_by=["day", "x"]).path)
    assert "partitioned by x, a double" in one.message


READERS = {"deletionVectors", "timestampNtz", "v2Checkpoint"}


@pytest.mark.parametrize("feature", sorted(preflight.KEPT))
def test_tables_with_features_that_do_not_concern_appends_are_written(tmp_path: Path, feature: str) -> None:
    table = Table(tmp_path / "table")
    features: dict[str, Any] = {"minReaderVersion": 1, "minWriterVersion": 7, "writerFeatures": [feature]}
    if feature in READERS:
        features |= {"minReaderVersion": 3, "readerFeatures": [feature]}
    change_log(table.path, protocol=features)
    with table.jobs() as jobs:
        driver = jobs.driver()
        driver.commits(driver.prepared([b"a"]))
    found = QueryBuilder().register("t", table.now()).execute("select value from t")
    assert pa.table(found.read_all())["value"].to_pylist() == [b"a"]


def test_a_directory_that_cannot_be_written_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(tmp_path / "table")
    (table.path / "_onceward").write_text("a file where the sink keeps its own")
    (one,) = found(table.path)
    assert "its directory cannot be written" in one.message


def test_a_storage_that_creates_a_file_twice_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalStorage, "create", lambda *_: True)
    (one,) = found(Table(tmp_path / "table").path)
    assert "two drivers could own the job" in one.message


# -- columns


FIELDS = [
    {"name": "id", "type": "long", "nullable": False, "metadata": {}},
    {"name": "Name", "type": "string", "nullable": True, "metadata": {}},
    {"name": "at", "type": "timestamp", "nullable": True, "metadata": {}},
    {"name": "p", "type": "decimal(5,2)", "nullable": True, "metadata": {}},
]


def test_columns_are_chosen_by_name_whatever_their_order_and_case() -> None:
    chosen = choose([("p", "decimal(5,2)"), ("name", "string"), ("ID", "int")], FIELDS, "t")
    assert [(one.column, one.name, one.cast) for one in chosen] == [
        ("ID", "id", None), ("name", "Name", None), ("p", "p", None),
    ]  # fmt: skip


def test_every_column_that_does_not_fit_is_named_in_one_message() -> None:
    given = [("name", "int"), ("NAME", "string"), ("at", "string"), ("p", "decimal(9,2)"), ("more", "int")]
    with pytest.raises(ConfigurationError) as error:
        choose(given, FIELDS, "t")
    problems = [line.strip(" -") for line in str(error.value).splitlines()[1:]]
    assert [problem.partition(":")[0] for problem in problems] == ["more", "id", "Name", "at", "p"]
    assert "cast it, for example df.withColumn('at', col('at').cast('timestamp'))" in problems[3]


def test_types_are_named_as_spark_names_them(tmp_path: Path) -> None:
    schema = pa.schema([(name, kind) for name, (kind, _) in EVERY_TYPE.items()])
    fields = LoadedTable(Table(tmp_path / "table", schema).location).fields()
    spark = StructType.fromJson({"type": "struct", "fields": fields})
    assert [spark_type(one["type"]) for one in fields] == [one.dataType.simpleString() for one in spark.fields]
    assert len(fields) == len(EVERY_TYPE)


# -- systems


def test_a_coordinator_opens_a_table_of_its_systems_file(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    with table.jobs() as jobs:
        driver = jobs.driver()
        made = driver.prepared([b"a"])
        named = NamedSystem(kind="delta", configuration=location_of("lake", {"table": str(table.path)}))
        system = part("delta", DELTA.system, "ended")(named.configuration, generation=lambda: 2)
        assert isinstance(system, DeltaSystem)
        assert [one.outcome for one in system.commit(driver.author, made)] == [Outcome.COMMITTED]
    assert table.values() == [b"a"]
    with pytest.raises(ConfigurationError, match="unknown: tabel"):
        location_of("lake", {"tabel": "x"})


def test_a_coordinator_checks_a_document_without_the_library(tmp_path: Path) -> None:
    table = Table(tmp_path / "table")
    with table.jobs() as jobs:
        driver = jobs.driver()
        (made,) = driver.prepared([b"a"])
        check = part("delta", DELTA.documents["delta-files"], "checked")
        check(made.document, None, driver.author)
        for wrong in ({"job": "other"}, {"files": [{"path": "x"}]}, {"transaction": "x"}, {"files": None}):
            body = {**made.document.body, **wrong}
            with pytest.raises(ValueError, match=r"it names|it lacks|invalid literal"):
                check(type(made.document)(kind="delta-files", version=1, body=body), None, driver.author)


def test_schemas_are_compared_as_the_log_has_them(tmp_path: Path) -> None:
    path = tmp_path / "table"
    DeltaTable.create(path, Schema([Field("v", PrimitiveType("decimal(12,2)"), nullable=False)]))
    session = DeltaSink(path).connect(CONTEXT)
    assert session.write().schema == pa.schema([pa.field("v", pa.decimal128(12, 2), nullable=False)])
