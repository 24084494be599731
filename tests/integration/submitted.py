"""A program for spark-submit: runs the job of ``tests/support/driver.py``, then prints the settings of its Spark."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from pyspark import SparkContext

from tests.support.driver import main

stop = SparkContext.stop


def show(context: SparkContext) -> None:
    """Print the context's master and name when the pipeline stops it."""
    print(f"master {context.master} name {context.appName}", flush=True)
    stop(context)


SparkContext.stop = show  # type: ignore[method-assign, assignment]
sys.exit(main())
