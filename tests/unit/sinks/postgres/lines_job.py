"""Copies lines of files into a table, without Spark: ``lines_job.py DSN FILES STATE``."""

import sys
from pathlib import Path

from custom_source import LinesSource

from onceward import CheckpointSettings, PostgresSink
from tests.support.sparkless import SparklessPipeline

if __name__ == "__main__":
    dsn, files, state = sys.argv[1:]
    SparklessPipeline(
        job="lines",
        source=LinesSource(files),
        sink=PostgresSink(dsn, "lines"),
        settings=CheckpointSettings(interval="50ms"),
        state_dir=Path(state),
    ).run()
