"""The Delta sink keeps what every sink promises."""

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from onceward import DeltaSink
from onceward.sinks.delta.control.system import DeltaSystem
from onceward.sinks.delta.location import TableLocation
from onceward.testing import SINK_PROMISES, Promise, SinkCase


@pytest.mark.parametrize("promise", SINK_PROMISES)
def test_the_delta_sink_keeps(promise: Promise[SinkCase], tmp_path: Path) -> None:
    table = tmp_path / "table"
    DeltaTable.create(table, pa.schema([("value", pa.binary())]))
    promise(
        SinkCase(
            sink=lambda name: DeltaSink(table, name=name),
            system=lambda: DeltaSystem.open(TableLocation.of(str(table))),
            visible=lambda: DeltaTable(table).to_pyarrow_table()["value"].to_pylist(),
            together=True,
        )
    )
