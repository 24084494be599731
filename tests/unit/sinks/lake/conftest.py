"""Tables of each kind, and jobs that write to them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from onceward.dev.promises.sink_case import Jobs
from tests.unit.sinks.delta.tables import Table as DeltaPlace
from tests.unit.sinks.iceberg.tables import Table as IcebergPlace
from tests.unit.sinks.iceberg.tables import sqlite_catalog
from tests.unit.sinks.lake.places import LakePlace

PLACES: dict[str, type[LakePlace]] = {"delta": DeltaPlace, "iceberg": IcebergPlace}


def new_place(kind: str, at: Path) -> LakePlace:
    return DeltaPlace(at / "table") if kind == "delta" else IcebergPlace(sqlite_catalog(at))


@pytest.fixture(params=PLACES)
def table(request: pytest.FixtureRequest, tmp_path: Path) -> LakePlace:
    return new_place(request.param, tmp_path)


@pytest.fixture
def jobs(table: LakePlace) -> Iterator[Jobs]:
    with table.jobs() as opened:
        yield opened
