"""``onceward doctor`` on a database: what a preflight would say, and what jobs have left. Nothing is changed."""

from collections.abc import Mapping
from pathlib import Path

from onceward.connectors.slots import Library
from onceward.operate.doctor.check import Check, Level
from onceward.operate.doctor.clusters import check_clusters
from onceward.operate.doctor.leftovers import KnownJobs, check_leftovers
from onceward.protocol.kinds import NamedSystem
from onceward.protocol.status import JobStatus
from tests.support.commands import onceward
from tests.support.database import Database
from tests.unit.sinks.postgres.test_merges import ORDERS, rows
from tests.unit.sinks.postgres.written import JOB, running


def asked(database: Database, *tables: str, dsn: str = "", job: str | None = None) -> Mapping[str, list[Check]]:
    """The lines by their subject."""
    system = NamedSystem(kind="postgres", configuration=dsn or database.dsn)
    lines: dict[str, list[Check]] = {}
    for line in check_clusters({"shop": (system, tables)}, job):
        lines.setdefault(line.subject, []).append(line)
    return lines


def test_a_new_database_is_described_and_left_as_it_is(database: Database) -> None:
    database.run("CREATE TABLE orders (id bigint PRIMARY KEY, amount int)")
    lines = asked(database, "orders")
    (fact,) = lines[f"database {database.dsn.rpartition('/')[2]}"][:1]
    assert ", role onceward, synchronous_commit on, no standby is connected" in fact.found
    assert lines["schema onceward_sink"][0].found == "the first start of a job creates it"
    table, late = lines["sink table public.orders"]
    assert table.found == "2 columns, rights SELECT, INSERT, UPDATE, DELETE, keys for upserts: id"
    assert (late.level, "is found after the decision" in late.found) == (Level.WARNING, True)
    assert database.rows("SELECT 1 FROM pg_namespace WHERE nspname = 'onceward_sink'") == []
    assert "rights on transactional ids and groups" not in lines, "they are Kafka's"


def test_what_a_role_lacks_is_an_error(database: Database) -> None:
    name = database.dsn.rpartition("/")[2]
    database.run(f"CREATE ROLE \"{name}\" LOGIN PASSWORD 'x'", "CREATE TABLE orders (id bigint)")
    database.run(f'ALTER ROLE "{name}" SET synchronous_commit TO off')
    try:
        lines = asked(database, "orders", "nowhere", dsn=database.dsn.replace("onceward@", f"{name}:x@"))
    finally:
        database.run(f'DROP OWNED BY "{name}"', f'DROP ROLE "{name}"')
    assert "synchronous_commit off, on for sinks" in lines[f"database {name}"][0].found
    errors = {line.subject: line.found for each in lines.values() for line in each if line.level is Level.ERROR}
    assert errors["sink table public.orders"] == "the role lacks INSERT"
    assert "cannot create it" in errors["schema onceward_sink"]
    assert "does not exist" in errors["sink table nowhere"]


def test_a_database_that_does_not_answer_is_an_error(database: Database) -> None:
    (line,) = asked(database, dsn="postgresql://none@127.0.0.1:1/d")["system shop"]
    assert (line.level, "cannot be reached" in line.found) == (Level.ERROR, True)


def test_the_command_asks_the_systems_of_a_file(database: Database, tmp_path: Path) -> None:
    database.run("CREATE TABLE orders (id bigint)")
    file = tmp_path / "systems.toml"
    file.write_text(f'[systems.shop]\nkind = "postgres"\ndsn = "{database.dsn}"\n')
    done = onceward("doctor", "--systems", str(file), "--table", "shop:orders", "--state-dir", str(tmp_path))
    assert "sink table public.orders" in done.stdout
    assert "hanging" not in done.stdout
    refused = onceward("doctor", "--systems", str(file), "--table", "lake:orders")
    assert "--topic is SYSTEM:NAME with one of shop" in refused.stderr


def test_what_jobs_have_left_is_compared_with_what_the_coordinator_knows(database: Database) -> None:
    database.run(ORDERS)
    shop = {"shop": NamedSystem(kind="postgres", configuration=database.dsn)}
    assert list(check_leftovers(shop, None)) == [], "no sink has been here"

    def line(known: KnownJobs | None) -> tuple[Level, str]:
        (found,) = check_leftovers(shop, known)
        assert found.subject == f"job {JOB} in system shop"
        return found.level, found.found

    def knows(store: str = "store", **jobs: JobStatus) -> KnownJobs:
        return KnownJobs(store=store, jobs=jobs)

    running_job, finished_job = {JOB: JobStatus.RUNNING}, {JOB: JobStatus.FINISHED}
    with running(database.dsn) as run:
        run.takes()
        assert line(knows(**finished_job))[0] is Level.OK, "a claim stays"
        run.write(rows(1))
        level, said = line(None)
        assert (level, said.rpartition(" for ")[0]) == (
            Level.OK,
            "claimed by store store, generation 1; 1 leftovers, the oldest",
        )
        assert line(knows(**running_job))[0] is Level.OK
        for known, why in (
            (knows(**finished_job), "and the job is finished"),
            (knows(), "does not know the job"),
            (knows("other", **running_job), "The coordinator's store is other"),
        ):
            level, said = line(known)
            assert (level, why in said) == (Level.WARNING, True), said
        run.system.forget(JOB, run.claim())
        assert list(check_leftovers(shop, knows())) == []


def test_executors_need_the_client_of_the_database(database: Database) -> None:
    libraries: dict[Library, str] = {}
    systems = {name: (NamedSystem(kind="postgres", configuration=database.dsn), ()) for name in ("shop", "crm")}
    assert list(check_clusters(systems, None, libraries))
    assert [(library.module, names) for library, names in libraries.items()] == [("psycopg", "shop, crm")]
