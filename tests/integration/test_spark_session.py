"""The session that a pipeline makes, with a real Spark in a process of its own."""

import subprocess
import sys

import pytest

STOPPED_BY_SPARK = """
from coordinator.pipeline.spark import make_session

first, made = make_session("orders")
assert made
first.sparkContext._jsc.sc().stop()  # as when a cluster's master takes the application away
second, made = make_session("orders")
assert made, "nobody would stop it"
assert second.range(3).count() == 3
"""


@pytest.mark.slow
def test_a_session_that_spark_has_ended_is_replaced_by_the_next_generation() -> None:
    ended = subprocess.run([sys.executable, "-c", STOPPED_BY_SPARK], capture_output=True, text=True, timeout=170)
    assert ended.returncode == 0, ended.stderr[-3000:]
