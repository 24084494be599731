"""A program for spark-submit: the job of ``job.py``, then what its session was."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from pyspark.sql import SparkSession

from tests.integration.job import main

stop = SparkSession.stop


def tell(session: SparkSession) -> None:
    """Say what the session was told when the pipeline stops it."""
    context = session.sparkContext
    print(f"master {context.master} name {context.appName}", flush=True)
    stop(session)


SparkSession.stop = tell  # type: ignore[method-assign, assignment]
sys.exit(main())
