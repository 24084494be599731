"""The PostgreSQL sink keeps what every sink promises, on a real server."""

from typing import Literal

import pytest

from onceward import PostgresSink
from onceward.sinks.postgres.control.system import PostgresSystem
from onceward.testing import SINK_PROMISES, Promise, SinkCase
from tests.support.database import Database


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize("promise", SINK_PROMISES)
def test_the_postgres_sink_keeps(
    promise: Promise[SinkCase], mode: Literal["append", "upsert"], database: Database
) -> None:
    database.run("CREATE TABLE orders (value bytea PRIMARY KEY CHECK (value <> 'wrong'))")
    key = ["value"] if mode == "upsert" else []
    promise(
        SinkCase(
            sink=lambda name: PostgresSink(database.dsn, "orders", mode=mode, key=key, name=name),
            system=lambda: PostgresSystem.open(database.dsn),
            refused=b"wrong",
            together=True,
            visible=lambda: [value for (value,) in database.rows("SELECT value FROM orders")],
        )
    )
