"""``onceward doctor``: what it says of a store and of executors, and the versions that it wants."""

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from packaging.requirements import Requirement

from onceward.common.errors import ExitCode
from onceward.connectors.slots import Library, NeedsLibraries
from onceward.coordinator.store import postgres as module
from onceward.coordinator.store.postgres import Examination
from onceward.driver.spark.session import ALWAYS, lacks
from onceward.operate.doctor import executors, machine, store
from onceward.operate.doctor.check import Level
from onceward.sinks.delta.executor.writer import DeltaSlotWriter
from onceward.sinks.delta.location import TableLocation
from onceward.sinks.postgres.executor.writer import PostgresSlotWriter
from tests.support.commands import onceward
from tests.support.places import Place, postgres_place

if TYPE_CHECKING:
    from onceward.dev.postgres.server import LocalPostgres

HERE = {"python": "3.11", "confluent_kafka": "2.16.1", "pyarrow": "26.0.1"}


def ask(*options: str, **environment: str) -> tuple[int, dict[str, list[dict[str, str]]]]:
    """Return the exit code, and the lines by their subject."""
    done = onceward("doctor", "--json", *options, **environment)
    lines: dict[str, list[dict[str, str]]] = {}
    for line in json.loads(done.stdout):
        lines.setdefault(line["subject"], []).append(line)
    return done.returncode, lines


@pytest.fixture
def place(postgres: "LocalPostgres") -> Place:
    return postgres_place(postgres)


def tables(place: Place) -> list[Any]:
    with place.raw() as connection:
        return list(connection.exec_driver_sql("SELECT 1 FROM pg_tables WHERE schemaname = current_schema()"))


@pytest.mark.slow
def test_doctor_asks_a_store_on_postgresql_and_changes_nothing(place: Place) -> None:
    _, lines = ask("--store", place.url)
    (found,) = lines["store"]
    assert re.match(
        r"PostgreSQL 1\d\.\d+, database \w+, schema \w+, role onceward; no coordinator uses", found["found"]
    )
    assert lines["rights in the store"][0]["found"] == "onceward may create its tables"
    assert lines["clock of the store"][0]["found"].startswith("as this machine's; its time zone is ")
    assert tables(place) == []
    with closing(place.open()):
        _, lines = ask("--store", place.url)
        assert re.search(r"; used by onceward \S+ at \S+, session \d+$", lines["store"][0]["found"])
        assert lines["rights in the store"][0]["found"] == "onceward may read and write its tables"
        assert {line["level"] for about in ("store", "rights in the store") for line in lines[about]} == {"ok"}


@pytest.mark.slow
def test_doctor_names_each_right_that_a_role_lacks_with_the_grant_that_mends_it(place: Place) -> None:
    schema, role = place.url[-17:], f"d{place.url[-16:]}"

    def rights() -> list[dict[str, str]]:
        options = ("--store", place.url.replace("//onceward@", f"//{role}@"), "--store-password", "env:SECRET")
        return ask(*options, SECRET="se cret")[1]["rights in the store"]

    place.run(f"CREATE ROLE {role} LOGIN PASSWORD 'se cret'", f"GRANT USAGE ON SCHEMA {schema} TO {role}")
    try:
        (right,) = rights()
        assert right["found"] == f"{role} has no CREATE on schema {schema}"
        place.open().close()
        missing = rights()
        assert f"{role} has no DELETE on jobs" in [line["found"] for line in missing]
        place.run(*(line["remedy"] for line in missing))
        (right,) = rights()
        assert right["level"] == "ok"
    finally:
        place.run(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


@pytest.mark.slow
def test_doctor_lists_everything_for_which_a_start_is_refused(place: Place) -> None:
    code, lines = ask("--store", place.url + "%20-csynchronous_commit%3Doff%20-cdefault_transaction_read_only%3Don")
    problems = [line["found"] for line in lines["store"] if line["level"] == "error"]
    assert code == 1
    assert [problem.partition(":")[0] for problem in problems] == [
        "transactions are read-only",
        "synchronous_commit is off",
    ]
    place.run("CREATE TABLE other (x int)")
    (problem,) = (line["found"] for line in ask("--store", place.url)[1]["store"] if line["level"] == "error")
    assert "is of something else" in problem


def test_doctor_never_repeats_a_secret_of_a_store(tmp_path: Path) -> None:
    done = onceward("doctor", "--store", "postgresql://u:hunter2@127.0.0.1:1/d", "--state-dir", str(tmp_path))
    assert done.returncode == 1
    assert "--store-password" in done.stdout
    assert "hunter2" not in done.stdout + done.stderr
    refused = onceward("doctor", "--store", "postgresql://u@127.0.0.1:1/d", "--store-password", "hunter2")
    assert (refused.returncode, "hunter2" in refused.stderr) == (ExitCode.USAGE, False)
    assert onceward("doctor", "--store-password", "env:X").returncode == ExitCode.USAGE


def test_doctor_says_that_a_store_does_not_answer_and_looks_at_the_directory_of_a_file(tmp_path: Path) -> None:
    (line,) = ask("--store", "postgresql://u@127.0.0.1:1/d")[1]["store"]
    assert (line["level"], "cannot be reached" in line["found"]) == ("error", True)
    _, lines = ask("--store", f"sqlite:///{tmp_path}/new/store.db")
    assert lines[f"directory of the store {tmp_path}/new"][0]["level"] == "ok"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("ahead_s", "level", "says"),
    [
        (0.4, "ok", "as this machine's"),
        (31.0, "warning", "at least 30.5 s ahead of"),
        (-3.0, "warning", "2.5 s behind"),
    ],
)
def test_a_clock_is_wrong_beyond_what_asking_takes(ahead_s: float, level: str, says: str) -> None:
    found = Examination(
        version="17.6", database="d", schema="s", role="r", leader="", is_new=False, problems=(), missing_rights=(),
        zone="Asia/Kolkata", ahead_s=ahead_s, give_or_take_s=0.5,
    )  # fmt: skip
    line = list(store.judged(found))[-1]
    assert (line.level, says in line.found) == (level, True)
    assert "Asia/Kolkata" in line.found


def test_what_keeps_old_rows_of_a_store_is_named(postgres: "LocalPostgres", monkeypatch: pytest.MonkeyPatch) -> None:
    place = postgres_place(postgres)
    place.open().close()
    with place.raw() as reader:
        reader.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        pid = reader.exec_driver_sql("SELECT pg_backend_pid() FROM jobs RIGHT JOIN onceward_meta ON true").scalar()
        assert not [held for held in module.examine(place.url).holding if f"process {pid} " in held], "it is young"
        monkeypatch.setattr(module, "_LONG_S", 0.0)
        named = [line for line in store.judged(module.examine(place.url)) if line.subject == "old rows of the store"]
        assert [f"process {pid} " in line.found for line in named].count(True) == 1
    assert not [held for held in module.examine(place.url).holding if f"process {pid} " in held]


@pytest.mark.parametrize(
    ("probes", "expected"),
    [
        ([HERE, HERE], [("ok", "3.11, as here"), ("ok", "2.16.1, as here"), ("ok", "26.0.1, as here")]),
        (
            [HERE, HERE | {"pyarrow": "25.0"}],
            [
                *(("ok", "3.11, as here"), ("ok", "2.16.1, as here")),
                *(("warning", "25.0, and 26.0.1 here"), ("ok", "26.0.1, as here")),
            ],
        ),
        (
            [HERE | {"confluent_kafka": "missing: ImportError()", "pyarrow": "9.0"}],
            [
                ("ok", "3.11, as here"),
                ("error", "confluent_kafka is missing: ImportError()"),
                ("error", "pyarrow is 9.0, at least 18 is needed"),
            ],
        ),
    ],
)
def test_executors_are_compared_with_this_machine(
    probes: Sequence[Mapping[str, str]], expected: list[tuple[str, str]]
) -> None:
    lines = list(executors.judged(probes, HERE, {}))
    assert [(line.level, line.found) for line in lines] == expected
    assert all(bool(line.remedy) == (line.level is not Level.OK) for line in lines)


def test_executors_are_asked_for_what_the_systems_need_and_each_line_names_them() -> None:
    psycopg = Library("psycopg", "3.2", "onceward[postgres-sink]")
    needed = {psycopg: "shop, crm", ALWAYS[1]: "lake"}
    probes = [HERE | {"psycopg": "missing: ImportError()"}, HERE | {"psycopg": "3.3.1"}]
    *lines, there, missing = executors.judged(probes, HERE | {"psycopg": "3.3.1"}, needed)
    assert [line.subject for line in lines] == [
        f"executors: {name}" for name in ("Python", "confluent-kafka", "pyarrow")
    ]
    assert there.subject == missing.subject == "executors: psycopg for shop, crm"
    assert (there.level, there.found) == ("ok", "3.3.1, as here")
    assert (missing.level, missing.found) == ("error", "psycopg is missing: ImportError()")
    assert missing.remedy.startswith("install onceward[postgres-sink] for")


def test_executors_need_what_the_distribution_requires() -> None:
    content = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())
    extras = content["project"]["optional-dependencies"]
    in_s3 = TableLocation.of("s3://bucket/table")
    writers = (
        PostgresSlotWriter(dsn="env:DSN", columns=(), keyed=False, checks=()),
        DeltaSlotWriter(columns=b"", location=in_s3),
    )
    assert isinstance(writers[0], NeedsLibraries)
    assert not DeltaSlotWriter(columns=b"", location=TableLocation.of("/data/table")).libraries
    needed = [*ALWAYS, *(library for writer in writers for library in writer.libraries)]
    assert [one.module for one in needed] == ["confluent_kafka", "pyarrow", "psycopg", "obstore"]
    for library in needed:
        extra = library.package.removeprefix("onceward[").removesuffix("]")
        names = {one.name: one for one in map(Requirement, (*extras[extra], *extras["kafka"]))}
        (least,) = (one.version for one in names[library.module.replace("_", "-")].specifier if one.operator == ">=")
        assert lacks(library.module, least, needed) == ""
        assert f"at least {least} is needed" in lacks(library.module, "0.1", needed)


def test_java_is_as_old_as_pyspark_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    least, whose = machine.java_of_spark()
    assert (least >= 17, whose.startswith(", for PySpark 4")) == (True, True)
    monkeypatch.setattr(machine, "java_of_spark", lambda: (99, ", for PySpark 9.9"))
    java = next(line for line in machine.check_machine() if line.subject == "Java")
    assert (java.level, "99 or newer, for PySpark 9.9" in java.remedy) == ("error", True)
    monkeypatch.undo()
    monkeypatch.setattr(machine, "files", lambda _: None)
    assert machine.java_of_spark() == (17, "")


@pytest.mark.parametrize(
    ("version", "ok"), [("2.16.1", True), ("2.17.0rc1", True), ("2.16.0", False), ("2.16.1rc1", False), ("3.0", False)]
)
def test_versions_are_compared_as_pip_does(monkeypatch: pytest.MonkeyPatch, version: str, *, ok: bool) -> None:
    monkeypatch.setattr(machine, "version", lambda _: version)
    monkeypatch.setattr(machine, "requires", lambda _: ['Confluent_Kafka<3,>=2.16.1; extra == "kafka"'])
    assert machine.check_package("confluent-kafka", "json", "pip install x").ok == ok


def test_a_machine_without_spark_is_a_coordinators_and_lacks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = {"pyspark", "confluent-kafka", "kafka-python", "numpy", "pyarrow", "pandas"}

    def known(package: str) -> str:
        if package in missing:
            raise PackageNotFoundError(package)
        return version(package)

    monkeypatch.setattr(machine, "version", known)
    monkeypatch.setattr(machine, "java_path", lambda: None)
    monkeypatch.setattr(machine, "java_of_spark", lambda: (17, ""))
    found = {line.subject: line for line in machine.check_machine()}
    assert {found[name].level for name in (*missing, "Java")} == {Level.WARNING}
    assert found["numpy"].remedy == "pip install 'onceward[spark]'; a coordinator alone needs none of it"
    missing.remove("pyspark")
    found = {line.subject: line for line in machine.check_machine()}
    assert {found[name].level for name in (*missing, "Java")} == {Level.ERROR}, "a machine for jobs lacks them"
