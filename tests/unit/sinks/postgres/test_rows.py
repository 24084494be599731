"""What a column of Arrow becomes in a table, and what is refused before the decision."""

import datetime
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from onceward.sinks.postgres.errors import StagingError
from tests.support.database import Database
from tests.unit.sinks.postgres.written import running

UTC = datetime.UTC
UUID = "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"
FIRST = datetime.datetime.fromisoformat("0001-01-01")
BERLIN = datetime.timezone(datetime.timedelta(hours=2))

VALUES: dict[str, tuple[str, pa.DataType, list[Any]]] = {
    "b": ("boolean", pa.bool_(), [True, False, None]),
    "i2": ("smallint", pa.int8(), [127, -128, None]),
    "i4": ("integer", pa.int32(), [2**31 - 1, -(2**31), None]),
    "i8": ("bigint", pa.int64(), [2**63 - 1, -(2**63), None]),
    "f4": ("real", pa.float32(), [1.5, float("-inf"), None]),
    "f8": ("double precision", pa.float64(), [0.1, 1e300, None]),
    "n": (
        "numeric(38,10)",
        pa.decimal128(38, 10),
        [Decimal("1234567890123456789012345678.0123456789"), Decimal(0), None],
    ),
    "d": ("date", pa.date32(), [datetime.date(1, 1, 1), datetime.date(9999, 12, 31), None]),
    "z": (
        "timestamptz",
        pa.timestamp("us", "Europe/Berlin"),
        [datetime.datetime(2026, 7, 1, 2, 0, 0, 123456, BERLIN), datetime.datetime(1970, 1, 1, tzinfo=UTC), None],
    ),
    "t": (
        "timestamp",
        pa.timestamp("us"),
        [FIRST.replace(year=2026, microsecond=5), FIRST, None],
    ),
    "s": ("text", pa.string(), ["tab\t, line\n, return\r, back\\slash \\N \\. 'quote' \"ü€😀", "", None]),
    "v": ("varchar(3)", pa.large_string(), ["abc", "", None]),
    "y": ("bytea", pa.binary(), [bytes(range(256)), b"", None]),
    "u": ("uuid", pa.string(), [UUID, UUID.upper(), None]),
    "j": ("jsonb", pa.string(), ['{"a": ["\\n", 1]}', "null", None]),
    "ai": ("bigint[]", pa.list_(pa.int64()), [[1, None, -3], [], None]),
    "at": ("text[]", pa.list_(pa.string()), [['a"b', "c\\d", "", "NULL", "{x,y}", None, "n\nt\t"], [], None]),
    "ay": ("bytea[]", pa.list_(pa.binary()), [[b"\x00\xff", b""], [], None]),
    "az": (
        "timestamptz[]",
        pa.list_(pa.timestamp("us", "UTC")),
        [[datetime.datetime(2026, 7, 1, tzinfo=UTC), None], [], None],
    ),
}


@pytest.mark.parametrize("name", VALUES)
def test_every_value_comes_back(name: str, database: Database) -> None:
    kind, arrow, values = VALUES[name]
    database.run(f'CREATE TABLE orders (n int, "a ""{name}" {kind})')
    batch = pa.record_batch([pa.array([0, 1, 2], pa.int32()), pa.array(values, arrow)], names=["n", f'a "{name}'])
    with running(database.dsn) as run:
        made = run.begin().prepared(batch.slice(0, 1), batch.slice(1, 2))
        run.commit(made)
    found = [value for (value,) in database.rows(f'SELECT "a ""{name}" FROM orders ORDER BY n')]
    wanted = {"j": [{"a": ["\n", 1]}, None, None], "u": [uuid.UUID(UUID)] * 2 + [None]}.get(name, values)
    assert found == wanted


def test_what_is_nested_becomes_json(database: Database) -> None:
    kind = pa.struct(
        [
            ("n", pa.int64()),
            ("d", pa.decimal128(20, 2)),
            ("f", pa.float64()),
            ("m", pa.map_(pa.string(), pa.list_(pa.bool_()))),
            ("t", pa.timestamp("us", "UTC")),
            ("b", pa.binary()),
        ]
    )
    given = {
        "n": 2**60, "d": Decimal("123456789012345678.90"), "f": float("nan"), "m": [("a\"\n", [True, None])],
        "t": datetime.datetime(2026, 7, 1, tzinfo=UTC), "b": b"\x00\xff",
    }  # fmt: skip
    database.run("CREATE TABLE orders (n int, a jsonb, b json)")
    batch = pa.record_batch(
        [
            pa.array([0, 1, 2], pa.int32()),
            pa.array([given, None, {"n": None}], kind),
            pa.array([[1, None], [], None], pa.list_(pa.int32())),
        ],
        names=["n", "a", "b"],
    )
    with running(database.dsn) as run:
        run.commit(run.begin().prepared(batch))
    assert database.rows("SELECT a FROM orders ORDER BY n") == [
        (
            {
                "n": 2**60, "d": 123456789012345678.9, "f": "nan", "m": {"a\"\n": [True, None]},
                "t": "2026-07-01T00:00:00+00:00", "b": "AP8=",
            },
        ),
        (None,),
        (dict.fromkeys("ndfmtb"),),
    ]  # fmt: skip
    assert database.rows("SELECT a ->> 'd' FROM orders WHERE n = 0") == [("123456789012345678.90",)]
    assert database.rows("SELECT b FROM orders ORDER BY n") == [([1, None],), ([],), (None,)]


def test_a_column_that_is_left_out_gets_its_default(database: Database) -> None:
    database.run("CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY, a int, b text NOT NULL DEFAULT 'x')")
    with running(database.dsn) as run:
        run.commit(run.begin().prepared(pa.record_batch([pa.array([7, 8], pa.int32())], names=["a"])))
    assert database.rows("SELECT * FROM orders ORDER BY id") == [(1, 7, "x"), (2, 8, "x")]


@pytest.mark.parametrize(
    ("kind", "array", "message"),
    [
        ("varchar(2)", pa.array(["ab", "abc"]), r"too long for type character varying\(2\), in column a, record 2"),
        ("uuid", pa.array([None, "no"]), "invalid input syntax for type uuid.*column a, record 2 of the slot"),
        ("int NOT NULL", pa.array([1, None], pa.int32()), "null value in column .*column a, record 2 of the slot"),
        ("int CHECK (a > 0)", pa.array([1, 0], pa.int32()), "constraint orders_a_check, record 2 of the slot"),
        ("text", pa.array(["ok", "a\0b"]), r"Record 2 of the slot has a character U\+0000 in column a"),
        ("text", pa.array([{"x": 1}]), "Column a is of Arrow type struct"),
    ],
)
def test_a_value_that_does_not_fit_is_named_and_nothing_is_left(
    kind: str, array: pa.Array, message: str, database: Database
) -> None:
    database.run(f"CREATE TABLE orders (a {kind})")
    with running(database.dsn) as run:
        run.begin()
        with pytest.raises(StagingError, match=message) as refused:
            run.write(pa.record_batch([array], names=["a"]))
        if "SQLSTATE" in str(refused.value):
            explained = run.session.explain(str(refused.value))
            assert explained is not None
            assert explained.by_record
        assert run.system.leftovers(run.author.job) == []
    assert database.names() == []


def test_a_column_that_the_table_lacks_is_refused(database: Database) -> None:
    database.run("CREATE TABLE orders (a int)")
    with running(database.dsn) as run, pytest.raises(StagingError, match="no column b that can be written"):
        run.begin().write(pa.record_batch([pa.array([1])], names=["b"]))
