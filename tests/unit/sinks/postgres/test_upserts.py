"""Rows replace and delete the ones with their key: the last one by input order counts."""

import pyarrow as pa
import pytest

from onceward import PostgresSink
from onceward.common.errors import ConfigurationError
from onceward.connectors.interfaces import Severity
from onceward.protocol.values import Outcome
from onceward.sinks.postgres.driver.columns import column_problems
from onceward.sinks.postgres.errors import StagingError
from tests.support.database import Database
from tests.unit.sinks.postgres.test_preflight import column, messages, table
from tests.unit.sinks.postgres.written import Run, running

ORDERS = "CREATE TABLE orders (id int, shop text, total int DEFAULT 7, note text DEFAULT 'new', PRIMARY KEY (id, shop))"


def rows(*given: tuple[int, int | None, bool | None]) -> pa.RecordBatch:
    """Of (id, total, whether it is deleted), in one shop."""
    ids, totals, gone = zip(*given, strict=True)
    return pa.record_batch(
        [pa.array(gone), pa.array(totals, pa.int32()), pa.array(["a"] * len(ids)), pa.array(ids, pa.int32())],
        names=["gone", "total", "shop", "id"],
    )


def upserting(database: Database) -> Run:
    return Run(PostgresSink(database.dsn, "orders", mode="upsert", key=["id", "shop"], delete="gone")).begin()


def test_the_last_row_of_a_key_counts_over_batches_slots_and_checkpoints(database: Database) -> None:
    database.run(
        ORDERS, "INSERT INTO orders VALUES (1, 'a', 0, 'kept'), (2, 'a', 0, ''), (3, 'b', 0, ''), (9, 'a', 0, '')"
    )
    run = upserting(database)
    slot = run.open()
    slot.write(rows((1, 10, False), (2, 20, False), (1, 11, False), (5, 50, True)))
    slot.write(rows((1, 12, None), (4, 40, False), (6, 60, False)))
    first = run.pre_commit(slot.finish(), run.write(rows((2, 21, False), (4, 41, True), (6, 61, False)), slot=1))
    second = run.prepared(rows((6, None, False), (9, None, True), (3, 30, False)), checkpoint=2)
    assert run.commit(first).outcome is Outcome.COMMITTED
    assert database.rows("SELECT * FROM orders ORDER BY id") == [
        (1, "a", 12, "kept"),
        (2, "a", 21, ""),
        (3, "b", 0, ""),
        (6, "a", 61, "new"),
        (9, "a", 0, ""),
    ]
    assert run.commit(second).outcome is Outcome.COMMITTED
    assert run.commit(first).outcome is Outcome.COMMITTED, "it is repeated, and changes nothing"
    assert database.rows("SELECT id, shop, total FROM orders WHERE id IN (3, 6, 9) ORDER BY id, shop") == [
        (3, "a", 30),
        (3, "b", 0),
        (6, "a", None),
    ]
    assert database.names() == []
    run.session.close()


def test_a_row_that_is_deleted_and_written_again_is_there(database: Database) -> None:
    database.run(ORDERS, "INSERT INTO orders VALUES (1, 'a', 0, 'old')")
    run = upserting(database)
    run.commit(run.prepared(rows((1, None, True), (1, 5, False)), rows((2, 1, False), (2, None, True))))
    assert database.rows("SELECT id, total FROM orders") == [(1, 5)]
    run.session.close()


def test_a_table_of_keys_alone_is_written(database: Database) -> None:
    database.run("CREATE TABLE orders (id int PRIMARY KEY)", "INSERT INTO orders VALUES (1)")
    with running(database.dsn, mode="upsert", key=["id"]) as run:
        batch = pa.record_batch([pa.array([1, 2, 2], pa.int32())], names=["id"])
        assert run.begin().commit(run.prepared(batch)).outcome is Outcome.COMMITTED
    assert database.rows("SELECT id FROM orders ORDER BY id") == [(1,), (2,)]


def test_keys_that_the_tables_collation_takes_for_equal_are_one_key(database: Database) -> None:
    database.run(
        "CREATE COLLATION nocase (provider = icu, locale = 'und-u-ks-level2', deterministic = false)",
        "CREATE TABLE orders (id text COLLATE nocase PRIMARY KEY, n int)",
    )
    with running(database.dsn, mode="upsert", key=["id"]) as run:
        batch = pa.record_batch([pa.array(["a", "A"]), pa.array([1, 2], pa.int32())], names=["id", "n"])
        assert run.begin().commit(run.prepared(batch)).outcome is Outcome.COMMITTED
    assert database.rows("SELECT id, n FROM orders") == [("A", 2)]


def test_a_trigger_that_drops_a_key_is_noticed(database: Database) -> None:
    database.run(
        ORDERS,
        "CREATE FUNCTION drops() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        "CREATE TRIGGER drops BEFORE INSERT ON orders FOR EACH ROW WHEN (new.id = 2) EXECUTE FUNCTION drops()",
    )
    run = upserting(database)
    settlement = run.commit(run.prepared(rows((1, 1, False), (2, 2, False))))
    assert settlement.outcome is Outcome.IN_DOUBT
    assert "2 keys are to be written, and 1 of them" in settlement.evidence
    assert database.rows("SELECT * FROM orders") == []
    run.session.close()


def test_a_key_without_a_value_declines_the_checkpoint(database: Database) -> None:
    """A unique index takes two nulls for different keys."""
    database.run("CREATE TABLE orders (id int UNIQUE)")
    with (
        running(database.dsn, mode="upsert", key=["id"]) as run,
        pytest.raises(StagingError, match=r"null value in column .*column id, record 2 of the slot"),
    ):
        run.begin().write(pa.record_batch([pa.array([1, None], pa.int32())], names=["id"]))


@pytest.mark.parametrize(
    ("made", "error"),
    [
        ("CREATE TABLE orders (id int)", "no unique index is on exactly the columns of the key (id)"),
        ("CREATE TABLE orders (id int, b int, UNIQUE (id, b))", "no unique index is on exactly"),
        ("CREATE TABLE orders (id int UNIQUE DEFERRABLE)", "no unique index is on exactly"),
        (
            "CREATE TABLE orders (id int); CREATE UNIQUE INDEX ON orders (id) WHERE id > 0",
            "no unique index is on exactly",
        ),
        ("CREATE TABLE orders (b int)", "it has no column id, which the key names"),
    ],
)
def test_a_key_that_the_table_does_not_keep_unique_is_an_error(made: str, error: str, database: Database) -> None:
    database.run(*made.split("; "))
    with running(database.dsn, mode="upsert", key=["id"]) as run:
        assert error in messages(run.findings, Severity.ERROR)


def test_the_index_of_the_key_is_no_warning(database: Database) -> None:
    database.run(ORDERS)
    run = upserting(database)
    assert run.findings == []
    run.session.close()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"mode": "merge"}, "mode: 'merge' is neither"),
        ({"mode": "upsert"}, "key: name the columns"),
        ({"key": ["id"]}, "key: needs mode='upsert'"),
        ({"mode": "upsert", "key": "id"}, "key: give a list"),
        ({"mode": "upsert", "key": ["id", "id"]}, "key: names a column twice"),
        ({"mode": "upsert", "key": ["id"], "delete": "id"}, "delete: a column of the key"),
        ({"delete": "gone"}, "delete: name a column of Booleans, with mode='upsert'"),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(options: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem):
        PostgresSink("env:DSN", "orders", **options)  # type: ignore[arg-type]


def test_columns_of_the_key_and_of_deletions_are_required() -> None:
    found = column_problems(
        [("gone", "int"), ("n", "int")], table(column("id", "int4"), column("n", "int4")), key=["id"], delete="gone"
    )
    assert found == [
        "id: is missing, and belongs to the key; add it",
        "gone: is int, must be boolean: it says which rows are deleted",
    ]
    assert (
        column_problems([("gone", "boolean"), ("id", "int")], table(column("id", "int4")), key=["id"], delete="gone")
        == []
    )
