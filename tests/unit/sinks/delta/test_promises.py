"""The Delta sink keeps what every sink promises, in a directory and in an object store."""

from pathlib import Path

import pytest

from onceward.testing import SINK_PROMISES, Promise, SinkCase
from tests.unit.sinks.delta.tables import ObjectTable, Table


@pytest.mark.parametrize("promise", SINK_PROMISES)
def test_the_delta_sink_keeps(promise: Promise[SinkCase], tmp_path: Path) -> None:
    promise(Table(tmp_path / "table").case())


@pytest.mark.parametrize("promise", SINK_PROMISES)
def test_the_delta_sink_keeps_in_an_object_store(promise: Promise[SinkCase], object_table: ObjectTable) -> None:
    promise(object_table.case())
