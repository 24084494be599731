"""A program for spark-submit: runs the job of ``tests/support/driver.py``, then prints the settings of its session."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from pyspark.sql import SparkSession

from tests.support.driver import main

stop = SparkSession.stop


def show(session: SparkSession) -> None:
    """Print the session's master and name when the pipeline stops it."""
    context = session.sparkContext
    print(f"master {context.master} name {context.appName}", flush=True)
    stop(session)


SparkSession.stop = show  # type: ignore[method-assign, assignment]
sys.exit(main())
