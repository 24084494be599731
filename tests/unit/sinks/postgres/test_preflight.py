"""What is found before the start, and which arguments and columns are refused."""

import os
from collections.abc import Sequence

import pytest

from onceward import PostgresSink
from onceward.common.errors import ConfigurationError, PreflightError
from onceward.connectors.interfaces import Finding, Severity
from onceward.protocol.kinds import Kind
from onceward.protocol.values import Author, JobName, ParticipantName
from onceward.sinks.postgres.control.system import PostgresSystem
from onceward.sinks.postgres.documents import check_committable
from onceward.sinks.postgres.driver.columns import choose, column_problems
from onceward.sinks.postgres.driver.tables import Column, Table
from onceward.sinks.postgres.dsn import dsn_of
from tests.support.database import Database
from tests.unit.sinks.postgres.test_merges import ORDERS, rows
from tests.unit.sinks.postgres.written import JOB, running


def messages(findings: Sequence[Finding], severity: Severity) -> str:
    return "\n".join(f"{found.subject}: {found.message}" for found in findings if found.severity is severity)


@pytest.mark.parametrize(
    ("before", "table", "error"),
    [
        ("", "orders", "sink table orders: it does not exist"),
        ("", "a b c", "sink table a b c: "),
        ("CREATE VIEW orders AS SELECT 1 AS a", "orders", "sink table public.orders: it is no table of this database"),
    ],
)
def test_a_table_that_cannot_be_written_is_an_error(before: str, table: str, error: str, database: Database) -> None:
    database.run(before)
    with running(database.dsn, table) as run:
        assert error in messages(run.findings, Severity.ERROR)


def test_a_sound_table_has_no_findings_and_the_second_run_creates_nothing(database: Database) -> None:
    database.run("CREATE SCHEMA shop", "CREATE TABLE shop.orders (id bigserial PRIMARY KEY, a int)")
    with running(database.dsn, "shop.orders") as run:
        assert run.findings == []
        assert [resource.name for resource in run.session.writes()] == ["shop.orders"]
    name = database.dsn.rpartition("/")[2]
    database.run(f"CREATE ROLE \"{name}\" LOGIN PASSWORD 'x'")
    try:
        database.run(
            f'GRANT USAGE ON SCHEMA shop TO "{name}"',
            f'GRANT INSERT ON shop.orders TO "{name}"',
            f'GRANT ALL ON SCHEMA onceward_sink TO "{name}"',
            f'GRANT ALL ON ALL TABLES IN SCHEMA onceward_sink TO "{name}"',
        )
        os.environ["ONCEWARD_TEST_DSN"] = database.dsn.replace("onceward@", f"{name}:x@")
        with running("env:ONCEWARD_TEST_DSN", "shop.orders") as run:
            assert run.findings == []
        database.run(f'REVOKE ALL ON shop.orders FROM "{name}"', f'REVOKE CREATE ON SCHEMA onceward_sink FROM "{name}"')
        database.run(f'REVOKE UPDATE ON onceward_sink.claims FROM "{name}"')
        with running("env:ONCEWARD_TEST_DSN", "shop.orders") as run:
            found = messages(run.findings, Severity.ERROR)
            assert "the role lacks UPDATE on onceward_sink.claims, CREATE on schema onceward_sink" in found
            assert "the role lacks INSERT" in found
    finally:
        database.run(f'DROP OWNED BY "{name}"', f'DROP ROLE "{name}"')


def test_a_role_that_may_create_nothing_learns_what_to_run(database: Database) -> None:
    name = database.dsn.rpartition("/")[2]
    database.run(f"CREATE ROLE \"{name}\" LOGIN PASSWORD 'x'")
    try:
        os.environ["ONCEWARD_TEST_DSN"] = database.dsn.replace("onceward@", f"{name}:x@")
        with running("env:ONCEWARD_TEST_DSN") as run:
            found = messages(run.findings, Severity.ERROR)
        assert "cannot create it: permission denied for database" in found
    finally:
        database.run(f'DROP ROLE "{name}"')


def test_a_read_only_server_is_an_error(database: Database) -> None:
    name = database.dsn.rpartition("/")[2]
    database.run(ORDERS, f'ALTER DATABASE "{name}" SET default_transaction_read_only TO on')
    with running(database.dsn) as run:
        assert "transactions are read-only" in messages(run.findings, Severity.ERROR)


def test_what_only_a_merge_can_refuse_is_a_warning(database: Database) -> None:
    database.run(
        "CREATE TABLE customers (id int PRIMARY KEY)",
        "CREATE TABLE orders (a int UNIQUE, b int REFERENCES customers)",
        "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END'",
        "CREATE TRIGGER looks BEFORE INSERT ON orders FOR EACH ROW EXECUTE FUNCTION nothing()",
    )
    with running(database.dsn) as run:
        assert messages(run.findings, Severity.ERROR) == ""
        found = messages(run.findings, Severity.WARNING)
    assert "it has triggers (looks)" in found
    assert "(orders_a_key (a), orders_b_fkey)" in found


def test_another_timeline_is_a_warning(database: Database) -> None:
    database.run(ORDERS)
    with running(database.dsn) as run:
        run.takes()
    database.run("UPDATE onceward_sink.claims SET timeline = timeline + 1")
    with running(database.dsn) as run:
        assert "another server took over, or a backup was restored" in messages(run.findings, Severity.WARNING)


def test_a_database_that_does_not_answer_stops_the_start() -> None:
    with pytest.raises(PreflightError, match="cannot be reached"), running("host=127.0.0.1 port=1 dbname=none"):
        pass


# -- arguments


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://me:hidden@host/db",
        "host=h password=hidden",
        "host=h password = 'hidden'",
        "env:not a name",
        "file:x",
        "",
    ],
)
def test_a_dsn_that_would_show_a_secret_is_refused_without_repeating_it(dsn: str) -> None:
    with pytest.raises(ConfigurationError, match="dsn:") as refused:
        PostgresSink(dsn, " ", name="No")
    assert "hidden" not in str(refused.value)
    assert "table:" in str(refused.value)
    assert "name:" in str(refused.value)


def test_a_password_is_in_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEWARD_TEST_DSN", "postgresql://nobody_there:hidden@127.0.0.1:1/db")
    with pytest.raises(PreflightError) as refused, running("env:ONCEWARD_TEST_DSN"):
        pass
    assert "hidden" not in str(refused.value)
    assert "env:ONCEWARD_TEST_DSN" in str(refused.value)
    monkeypatch.setenv("ONCEWARD_TEST_DSN", "host=h passwort=hidden")
    with pytest.raises(ConfigurationError, match="of env:ONCEWARD_TEST_DSN cannot be read") as unreadable:
        PostgresSystem.open("env:ONCEWARD_TEST_DSN").id()
    assert "hidden" not in str(unreadable.value)


def test_a_systems_file_names_the_dsn() -> None:
    assert dsn_of("bi", {"dsn": "env:DSN"}) == "env:DSN"
    with pytest.raises(ConfigurationError, match="unknown: port"):
        dsn_of("bi", {"dsn": "env:DSN", "port": 1})


def test_the_kind_names_parts_that_are_there() -> None:
    from importlib import import_module

    from onceward.sinks.postgres.kind import POSTGRES

    assert isinstance(POSTGRES, Kind)
    for part in (*POSTGRES.documents.values(), POSTGRES.configuration, POSTGRES.system):
        module, _, attribute = part.partition(":")
        found = import_module(module)
        for name in attribute.split("."):
            found = getattr(found, name)


def test_a_coordinator_checks_a_document_without_a_database(database: Database) -> None:
    database.run(ORDERS)
    with running(database.dsn) as run:
        (made,) = run.begin().prepared(rows(1))
    check_committable(made.document, None, run.author)
    for author in (
        Author(job=JobName("other"), participant=ParticipantName("sink"), generations=range(1, 2)),
        Author(job=JOB, participant=ParticipantName("sink"), generations=range(2, 3)),
    ):
        with pytest.raises(ValueError, match="which is not sink of job"):
            check_committable(made.document, None, author)


# -- columns


def column(name: str, base: str, **more: object) -> Column:
    known = {
        "text": "S",
        "varchar": "S",
        "uuid": "U",
        "jsonb": "U",
        "bytea": "U",
        "mood": "E",
        "inet": "I",
        "_int4": "A",
    }
    facts: dict[str, object] = {
        "type": base, "category": known.get(base, "N"), "element": base[1:] if base[0] == "_" else None, "modifier": -1,
        "required": False, "has_default": False, "computed": False, **more,
    }  # fmt: skip
    return Column(name=name, base=base, **facts)  # type: ignore[arg-type]


def table(*columns: Column) -> Table:
    return Table(
        schema="public",
        name="orders",
        kind="r",
        missing_rights=(),
        secured=False,
        triggers=(),
        columns=columns,
        checks=(),
    )


NUMERIC_10_2 = {"modifier": (10 << 16 | 2) + 4}


@pytest.mark.parametrize(
    ("kind", "wanted", "fits"),
    [
        ("boolean", column("a", "bool"), True),
        ("tinyint", column("a", "int2"), True),
        ("int", column("a", "int8"), True),
        ("bigint", column("a", "int4"), False),
        ("int", column("a", "float8"), False),
        ("bigint", column("a", "numeric"), True),
        ("bigint", column("a", "numeric", **NUMERIC_10_2), False),
        ("smallint", column("a", "numeric", **NUMERIC_10_2), True),
        ("decimal(10,2)", column("a", "numeric", **NUMERIC_10_2), True),
        ("decimal(10,3)", column("a", "numeric", **NUMERIC_10_2), False),
        ("decimal(11,2)", column("a", "numeric", **NUMERIC_10_2), False),
        ("decimal(38,18)", column("a", "numeric"), True),
        ("decimal(10,2)", column("a", "float8"), False),
        ("float", column("a", "float8"), True),
        ("double", column("a", "float4"), False),
        ("string", column("a", "text"), True),
        ("string collate UTF8_LCASE", column("a", "varchar"), True),
        ("string", column("a", "uuid"), True),
        ("string", column("a", "jsonb"), True),
        ("string", column("a", "mood"), True),
        ("string", column("a", "inet"), True),
        ("string", column("a", "int4"), False),
        ("string", column("a", "bytea"), False),
        ("binary", column("a", "bytea"), True),
        ("binary", column("a", "text"), False),
        ("date", column("a", "date"), True),
        ("timestamp", column("a", "timestamptz"), True),
        ("timestamp", column("a", "timestamp"), False),
        ("timestamp_ntz", column("a", "timestamp"), True),
        ("array<int>", column("a", "_int4"), True),
        ("array<bigint>", column("a", "_int4"), False),
        ("array<int>", column("a", "jsonb"), True),
        ("struct<x:int>", column("a", "jsonb"), True),
        ("map<string,int>", column("a", "text"), False),
        ("void", column("a", "text"), False),
    ],
)
def test_a_type_fits_or_it_does_not(kind: str, wanted: Column, fits: bool) -> None:
    assert (column_problems([("a", kind)], table(wanted)) == []) is fits


def test_every_column_is_chosen_as_it_is_or_all_mismatches_are_raised_together() -> None:
    wanted = table(column("id", "int4"), column("note", "text"))
    assert [(one.column, one.name, one.cast) for one in choose([("note", "string")], wanted)] == [
        ("note", "note", None)
    ]
    with pytest.raises(ConfigurationError, match=r"(?s)public\.orders.*  - id: is bigint.*  - b: the table has no"):
        choose([("id", "bigint"), ("b", "int")], wanted)


def test_every_mismatch_is_in_one_list() -> None:
    found = column_problems(
        [("id", "bigint"), ("Total", "int"), ("made", "int"), ("twice", "int"), ("twice", "int"), ("else", "int")],
        table(
            column("id", "int4"),
            column("total", "int4"),
            column("made", "int4", computed=True),
            column("twice", "int4"),
            column("missing", "int4", required=True),
            column("filled", "int4", required=True, has_default=True),
        ),
    )
    text = "\n".join(found)
    for part in (
        "id: is bigint",
        "rename it to total",
        "made: PostgreSQL makes",
        "twice: there are 2",
        "else: the table",
    ):
        assert part in text
    assert "missing: is missing" in text
    assert "filled" not in text
