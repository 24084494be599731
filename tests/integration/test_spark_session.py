"""The session that a pipeline makes, with a real Spark in its own process."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from onceward.common.jvm.spark import write_archive

STOPPED_BY_SPARK = """
from onceward.driver.spark.session import make_session

first, made = make_session("orders")
assert made
first.sparkContext._jsc.sc().stop()  # as when a cluster's master takes the application away
second, made = make_session("orders")
assert made, "it would never be stopped"
assert second.range(3).count() == 3
"""


@pytest.mark.slow
def test_a_session_that_spark_has_ended_is_replaced_by_the_next_generation() -> None:
    ended = subprocess.run([sys.executable, "-c", STOPPED_BY_SPARK], capture_output=True, text=True, timeout=170)
    assert ended.returncode == 0, ended.stderr[-3000:]


EXECUTORS_WITHOUT_ARROW = """
import os, sys
from onceward.common.errors import PreflightError
from onceward.driver.spark.session import Spark, make_session, ship
from onceward.sinks.postgres.executor.writer import PostgresSlotWriter

import pyarrow  # the driver has it, and psycopg
os.environ["PYTHONPATH"] = os.pathsep.join([sys.argv[1], os.environ.get("PYTHONPATH", "")])
spark, _ = make_session("orders")
try:
    writer = PostgresSlotWriter(dsn="env:DSN", columns=(), keyed=False, checks=())
    ship(Spark.of(spark), [writer], arrow=sys.argv[2] == "arrow")
except PreflightError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["arrow", "plainly"])
def test_an_executor_without_arrow_is_refused_with_the_missing_package(tmp_path: Path, way: str) -> None:
    (tmp_path / "pyarrow.py").write_text("raise ImportError('there is none here')")
    (tmp_path / "psycopg.py").write_text("__version__ = '3.1.9'")
    ended = subprocess.run(
        [sys.executable, "-c", EXECUTORS_WITHOUT_ARROW, str(tmp_path), way],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "pyarrow is missing: ImportError('there is none here')" in ended.stdout, ended.stderr[-3000:]
    assert "psycopg is 3.1.9, at least 3.2 is needed" in ended.stdout
    assert "fix: pip install 'onceward[spark]' 'onceward[postgres-sink]' for the executors' Python" in ended.stdout


STARTED = """
from onceward.driver.spark.session import make_session

assert make_session("orders")[0].range(3).count() == 3
"""


@pytest.mark.slow
def test_a_session_maps_the_archived_classes_of_spark(tmp_path: Path) -> None:
    write_archive()
    log = tmp_path / "classes"
    given = {**os.environ, "SPARK_SUBMIT_OPTS": f"-Xlog:class+load:file={log}"}
    ended = subprocess.run([sys.executable, "-c", STARTED], env=given, capture_output=True, text=True, timeout=170)
    assert ended.returncode == 0, ended.stderr[-3000:]
    classes = [line for line in log.read_text().splitlines() if "org.apache.spark." in line]
    mapped = [line for line in classes if "source: shared objects file (top)" in line]
    loaded = [line for line in classes if "source: file:" in line]
    assert len(mapped) > 1000 > 10 * len(loaded)


WORKER = """
from onceward.driver.spark.session import make_session

spark, _ = make_session("orders")

def found(_rows):
    import py4j, pyspark
    yield pyspark.__file__, py4j.__file__

for file in spark.sparkContext.parallelize([0], 1).mapPartitions(found).first():
    print(file)
"""


@pytest.mark.slow
def test_python_workers_of_a_session_that_we_make_run_the_installed_pyspark() -> None:
    """Spark's archive of it has no compiled code, which costs each start a second."""
    ended = subprocess.run([sys.executable, "-c", WORKER], capture_output=True, text=True, timeout=170)
    assert ended.returncode == 0, ended.stderr[-3000:]
    files = ended.stdout.split()
    assert len(files) == 2
    assert not any(".zip" in file for file in files)


COPY = """
from datetime import timedelta
from onceward import KafkaSink, KafkaSource
from onceward.connectors import JobContext, JobName
from onceward.driver.spark.session import Spark, make_context, ship
from onceward.sinks.kafka.driver.session import KafkaSinkSession
from onceward.driver.spark.job import CheckpointJob
from onceward.driver.spark.passes import Pass, Share
from pyspark.sql import SparkSession

context, made = make_context("orders", scheduling=True)
assert made
context_of_job = JobContext(job=JobName("orders"), checkpoint_timeout=timedelta(minutes=1))
sink = KafkaSinkSession(KafkaSink("localhost:9092", topic="out"), context_of_job, None, "")
sink.write = lambda: None  # it is not connected
job = CheckpointJob(
    spark=Spark(context),
    job="orders",
    source=KafkaSource("localhost:9092", topics=["in"]),
    work=Pass([Share(sink)]),
    transform_batches=None,
    per_checkpoint_operations=False,
)
job.check()
ship(Spark(context), arrow=False)
assert SparkSession._instantiatedSession is None
"""


@pytest.mark.slow
def test_a_job_without_dataframes_starts_without_spark_sql(tmp_path: Path) -> None:
    """To load it takes a quarter of the time of a start."""
    log = tmp_path / "classes"
    given = {**os.environ, "SPARK_SUBMIT_OPTS": f"-Xlog:class+load:file={log}"}
    ended = subprocess.run([sys.executable, "-c", COPY], env=given, capture_output=True, text=True, timeout=170)
    assert ended.returncode == 0, ended.stderr[-3000:]
    loaded = log.read_text()
    assert "org.apache.spark.scheduler.DAGScheduler " in loaded
    assert "org.apache.spark.sql.classic.SparkSession " not in loaded


QUIET = """
from onceward.driver.spark.session import make_session

spark, _ = make_session("orders")
assert spark.sparkContext.getConf().get("spark.ui.showConsoleProgress") == "false"
spark._jvm.org.apache.logging.log4j.LogManager.getLogger("org.apache.spark.Any").warn("the disk is full")
"""


@pytest.mark.slow
def test_a_session_that_we_make_logs_warnings_but_not_those_that_each_machine_gets() -> None:
    ended = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, text=True, timeout=170)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert "WARN Any: the disk is full" in ended.stderr
    assert "native-hadoop" not in ended.stderr
    assert "Your hostname" not in ended.stderr


SEARCHED = """
import sys
from contextlib import nullcontext, suppress

from onceward.driver.spark.session import failures_unlogged, make_session

spark, _ = make_session("orders")


def take(_):
    raise ValueError("poison")


for search in (nullcontext, lambda: failures_unlogged(spark.sparkContext), nullcontext):
    with search(), suppress(Exception):
        spark.sparkContext.parallelize([1], 1).map(take).collect()
    print("== ran ==", file=sys.stderr, flush=True)
"""


@pytest.mark.slow
def test_failures_of_tasks_are_logged_except_while_they_are_searched() -> None:
    ended = subprocess.run([sys.executable, "-c", SEARCHED], capture_output=True, text=True, timeout=170)
    assert ended.returncode == 0, ended.stderr[-3000:]
    first, searched, last, _ = ended.stderr.split("== ran ==")
    assert "ValueError: poison" in first
    assert searched.strip() == ""
    assert "ValueError: poison" in last
