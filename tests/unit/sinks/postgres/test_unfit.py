"""Which rows PostgreSQL would refuse is found before one is written; what is written is exactly the rest."""

import re
from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
import pytest

from onceward.common.errors import CheckpointFailedError
from onceward.connectors.slots import CheckingSlot
from onceward.protocol.values import Outcome
from onceward.sinks.postgres.executor import writer
from tests.support.database import Database
from tests.unit.sinks.postgres.written import Run, running

ORDERS = "CREATE TABLE orders (id bigint PRIMARY KEY, a varchar(5) NOT NULL, b text CHECK (b <> 'no'))"
SCHEMA = pa.schema([("id", pa.int64()), ("a", pa.string()), ("b", pa.string())])


def rows(*records: tuple[int, str | None, str | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(SCHEMA.names, one, strict=True)) for one in records], SCHEMA)


def good(start: int, end: int) -> list[tuple[int, str | None, str | None]]:
    return [(n, "x", "y") for n in range(start, end)]


MIXED = [
    (0, "x", "y"),
    (1, "too long", "y"),
    (2, None, "y"),
    (3, "x", "no"),
    (4, "a\0", "y"),
    (5, "x", "\0"),
    *good(6, 9),
]
FOUND = {1: "schema", 2: "refused", 3: "refused", 4: "schema", 5: "schema"}


@pytest.fixture(params=["append", "upsert"])
def run(database: Database, request: pytest.FixtureRequest) -> Iterator[Run]:
    database.run(ORDERS)
    options: dict[str, Any] = {"mode": "upsert", "key": ["id"]} if request.param == "upsert" else {}
    with running(database.dsn, **options) as run:
        run.takes()
        yield run


def seen(database: Database) -> list[int]:
    return [value for (value,) in database.rows("SELECT id FROM orders ORDER BY 1")]


def found(slot: CheckingSlot, batch: pa.RecordBatch) -> dict[int, str]:
    return {one.row: one.kind.value for one in slot.unfit(batch)}


def without(batch: pa.RecordBatch, rows: dict[int, str]) -> pa.RecordBatch:
    return batch.filter(pa.array([row not in rows for row in range(batch.num_rows)]))


def finished(run: Run, slot: CheckingSlot) -> int:
    vote = slot.finish()
    made = run.pre_commit(vote)
    if made:
        assert run.commit(made).outcome is Outcome.COMMITTED
    return vote.records


@pytest.mark.parametrize("language", ["English", "another"])
def test_every_row_that_is_refused_is_named_and_the_others_are_written(
    run: Run, database: Database, monkeypatch: pytest.MonkeyPatch, language: str
) -> None:
    """A server that speaks another language than English does not say ``line`` of a row."""
    if language == "another":
        monkeypatch.setattr(writer, "_LINE", re.compile(r"Zeile (\d+)(?:, Spalte ([^:]+))?"))
    slot = cast("CheckingSlot", run.open())
    first, batch = rows(*good(100, 110)), rows(*MIXED)
    assert found(slot, first) == {}
    slot.write(first)
    assert found(slot, batch) == FOUND
    slot.write(without(batch, FOUND))
    assert finished(run, slot) == 14
    assert seen(database) == [0, 6, 7, 8, *range(100, 110)]


def test_reasons_name_column_and_constraint(run: Run) -> None:
    slot = cast("CheckingSlot", run.open())
    reasons = {one.row: one.reason for one in slot.unfit(rows(*MIXED))}
    assert "value too long for type character varying(5), in column a (SQLSTATE 22001)" in reasons[1]
    assert "in column a (SQLSTATE 23502)" in reasons[2]
    assert "constraint orders_b_check (SQLSTATE 23514)" in reasons[3]
    slot.abandon()


def test_what_was_looked_at_and_not_written_is_not_there(run: Run, database: Database) -> None:
    """Another output may refuse a row, so that a batch is written in part, or not at all."""
    slot = cast("CheckingSlot", run.open())
    batch, other = rows(*good(0, 10)), rows(*good(10, 20))
    for one in (batch, other, batch):
        assert found(slot, one) == {}
    slot.write(batch.slice(0, 3))
    assert found(slot, other) == {}
    slot.write(other)
    assert next(iter(slot.unfit(rows(*MIXED)))).row == 4, "and no one asks for the rest"
    assert found(slot, batch) == {}
    assert finished(run, slot) == 13
    assert seen(database) == [0, 1, 2, *range(10, 20)]


def test_a_slot_whose_rows_are_all_set_aside_votes_for_none(run: Run, database: Database) -> None:
    slot = cast("CheckingSlot", run.open())
    assert found(slot, rows(*MIXED[1:3])) == {0: "schema", 1: "refused"}
    slot.write(rows())
    assert finished(run, slot) == 0
    assert database.names() == []


def test_a_row_that_no_one_has_set_aside_fails_the_slot(run: Run, database: Database) -> None:
    slot: Any = run.open()
    list(slot.unfit(rows(*MIXED)))
    with pytest.raises(CheckpointFailedError, match="U\\+0000 in column a"):
        slot.write(rows(*MIXED))
    with pytest.raises(CheckpointFailedError, match=r"\(SQLSTATE 22001\)\. No row"):
        slot.write(rows(*MIXED[:4]))
    slot.abandon()
    assert (seen(database), database.names()) == ([], [])
