"""The Iceberg sink keeps what every sink promises."""

from pathlib import Path

import pytest

from onceward.testing import SINK_PROMISES, Promise, SinkCase
from tests.unit.sinks.iceberg.tables import Table, sqlite_catalog


@pytest.mark.parametrize("promise", SINK_PROMISES)
def test_the_iceberg_sink_keeps(promise: Promise[SinkCase], tmp_path: Path) -> None:
    promise(Table(sqlite_catalog(tmp_path)).case())
