"""Which archive of classes a Spark starts from. No Spark runs here."""

import sys
from pathlib import Path

import pytest

from onceward.common.errors import ConfigurationError
from onceward.common.jvm import spark
from onceward.common.jvm.archives import archive_written
from onceward.common.jvm.spark import archive_file, light_start, start_from_archive, write_archive


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java and a Spark with one jar, and a directory with a space in its name for the archives."""
    java, jar = tmp_path / "java" / "bin" / "java", tmp_path / "spark" / "jars" / "spark-core.jar"
    for file in (java, jar):
        file.parent.mkdir(parents=True)
        file.write_text("1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "java"))
    monkeypatch.setenv("SPARK_HOME", str(tmp_path / "spark"))
    monkeypatch.setattr(spark, "_DIRECTORY", tmp_path / "with space")
    return tmp_path


def test_a_spark_starts_from_the_archive_only_if_it_was_written(machine: Path) -> None:
    variables = {"SPARK_SUBMIT_OPTS": "-Xmx1g"}
    start_from_archive(variables)
    assert variables == {"SPARK_SUBMIT_OPTS": "-Xmx1g"}
    with archive_written(archive_file()) as recorded:
        recorded.write_text("classes")
    start_from_archive(variables)
    assert variables == {"SPARK_SUBMIT_OPTS": f'-Xmx1g "-XX:SharedArchiveFile={archive_file()}"'}
    start_from_archive(variables)
    assert variables["SPARK_SUBMIT_OPTS"].count("SharedArchiveFile") == 1


@pytest.mark.parametrize("changed", ["java/bin/java", "spark/jars/spark-core.jar", "spark/jars/another.jar"])
def test_another_java_or_other_jars_need_another_archive(machine: Path, changed: str) -> None:
    before = archive_file()
    (machine / changed).write_text("another version")
    assert archive_file() != before


def test_an_archive_of_the_users_own_stays(machine: Path) -> None:
    with archive_written(archive_file()) as recorded:
        recorded.write_text("classes")
    variables = {"SPARK_SUBMIT_OPTS": "-XX:SharedArchiveFile=/their/own.jsa"}
    start_from_archive(variables)
    assert variables == {"SPARK_SUBMIT_OPTS": "-XX:SharedArchiveFile=/their/own.jsa"}


def write_half_an_archive() -> None:
    with archive_written(archive_file()) as recorded:
        recorded.write_text("half of the cla")
        raise OSError("disk is full")


def test_an_archive_that_was_not_written_to_its_end_is_not_used(machine: Path) -> None:
    with pytest.raises(OSError, match="disk is full"):
        write_half_an_archive()
    assert not archive_file().exists()
    assert not list(archive_file().parent.iterdir())


def test_a_spark_that_does_not_run_is_reported_with_its_reason(machine: Path) -> None:
    with pytest.raises(ConfigurationError, match="Spark does not run here, so its classes were not archived"):
        write_archive()
    assert not archive_file().exists()


def test_without_java_there_is_no_archive_and_spark_itself_reports_that(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(machine / "none"))
    variables: dict[str, str] = {}
    start_from_archive(variables)
    assert variables == {}
    with pytest.raises(ConfigurationError, match="archive of Spark's classes could not be written"):
        write_archive()


def test_the_archive_is_kept_with_the_python_environment() -> None:
    assert Path(sys.prefix, "share", "onceward") == archive_file().parent


def test_a_start_has_our_logging_only_while_it_lasts(machine: Path) -> None:
    variables = {"SPARK_SUBMIT_OPTS": "-Xmx1g"}
    with light_start(environment=variables):
        option = variables["SPARK_SUBMIT_OPTS"].removeprefix("-Xmx1g -Dlog4j2.configurationFile=file://")
        assert Path(option).is_file()
    assert variables == {"SPARK_SUBMIT_OPTS": "-Xmx1g"}
    nothing: dict[str, str] = {}
    with light_start(environment=nothing):
        assert sorted(nothing) == ["SPARK_LAUNCHER_OPTS", "SPARK_SUBMIT_OPTS"]
    assert nothing == {}


@pytest.mark.parametrize(
    "variables",
    [
        {"SPARK_SUBMIT_OPTS": "-Dlog4j2.configurationFile=file:/their/own"},
        {"PYSPARK_SUBMIT_ARGS": "--driver-java-options -Dlog4j.configurationFile=own pyspark-shell"},
        {"LOG4J_CONFIGURATION_FILE": "/their/own"},
    ],
)
def test_options_for_the_users_own_logging_stay(machine: Path, variables: dict[str, str]) -> None:
    before = dict(variables)
    with light_start(environment=variables):
        assert variables.pop("SPARK_LAUNCHER_OPTS")
        assert variables == before


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("log4j2.properties", ""),
        ("log4j2.xml", ""),
        ("spark-defaults.conf", "spark.driver.extraJavaOptions -Dlog4j2.configurationFile=file:/their/own"),
        ("spark-defaults.conf", "spark.log.structuredLogging.enabled true"),
    ],
)
def test_files_for_the_users_own_logging_stay_in_force(machine: Path, name: str, text: str) -> None:
    (machine / "spark" / "conf").mkdir()
    (machine / "spark" / "conf" / name).write_text(text)
    variables: dict[str, str] = {}
    with light_start(environment=variables):
        assert "SPARK_SUBMIT_OPTS" not in variables


def test_a_jvm_that_only_schedules_starts_with_the_first_compiler(machine: Path) -> None:
    variables = {"SPARK_SUBMIT_OPTS": "-Xmx1g"}
    with light_start(scheduling=True, environment=variables):
        assert variables["SPARK_SUBMIT_OPTS"].startswith("-XX:TieredStopAtLevel=1 -Xmx1g ")
    with light_start(environment=variables):
        assert "Tiered" not in variables["SPARK_SUBMIT_OPTS"]
