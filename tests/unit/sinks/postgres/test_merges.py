"""A checkpoint's rows are merged exactly once, whatever ends meanwhile, and nothing is merged that may not be."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

from onceward.common.errors import FencedError
from onceward.common.killpoints import KILL_ONCE_VARIABLE, KILL_POINT_VARIABLE, KillPoint
from onceward.dev.postgres.server import LocalPostgres
from onceward.protocol.values import Committable, Outcome
from onceward.sinks.postgres.control.system import PostgresSystem
from onceward.sinks.postgres.errors import ContradictionError
from tests.support.database import Database, database_on
from tests.support.waiting import wait_until
from tests.unit.sinks.postgres.written import JOB, Run, running

HERE = Path(__file__).parent
ROOT = HERE.parents[3]
ORDERS = "CREATE TABLE orders (a int)"


def rows(*values: int) -> pa.RecordBatch:
    return pa.record_batch([pa.array(values, pa.int32())], names=["a"])


def seen(database: Database) -> list[int]:
    return [value for (value,) in database.rows("SELECT a FROM orders ORDER BY a")]


@pytest.fixture
def run(database: Database) -> Iterator[Run]:
    database.run(ORDERS)
    with running(database.dsn) as run:
        yield run


def committer(
    database: Database, made: Sequence[Committable], armed: str = "", once: Path | None = None
) -> "subprocess.Popen[str]":
    environment = {**os.environ, KILL_POINT_VARIABLE: armed}
    if once is not None:
        environment[KILL_ONCE_VARIABLE] = str(once)
    command = [sys.executable, str(HERE / "committer.py"), database.dsn, "1", json.dumps(asdict(made[0].document))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT)


@contextmanager
def beside(call: Callable[[], object]) -> Iterator[list[object]]:
    """Run ``call`` in a thread; what it returns is in the list at the end."""
    done: list[object] = []
    thread = threading.Thread(target=lambda: done.append(call()))
    thread.start()
    try:
        yield done
    finally:
        thread.join(120)
        assert not thread.is_alive()


def waiting_for_locks(database: Database) -> int:
    ((count,),) = database.rows(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    assert isinstance(count, int)
    return count


# -- processes that end


def test_a_writer_that_is_killed_leaves_nothing(database: Database) -> None:
    """Its table is made, filled and registered in one transaction."""
    database.run(ORDERS)
    code = (
        "from tests.unit.sinks.postgres.test_merges import rows\n"
        "from tests.unit.sinks.postgres.written import running\n"
        f"with running({database.dsn!r}) as run:\n"
        "    opened = run.begin().open()\n"
        "    opened.write(rows(*range(100_000)))\n"
        "    opened.write(rows(1))\n"
    )
    environment = {**os.environ, KILL_POINT_VARIABLE: f"{KillPoint.TASK_MID_WRITE.value}:2"}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, cwd=ROOT, check=False, timeout=120)
    assert ended.returncode == -signal.SIGKILL
    wait_until(lambda: database.names() == [], "the server has rolled back")
    with running(database.dsn) as run:
        assert run.system.leftovers(JOB) == []


def test_a_process_that_is_killed_in_its_merge_has_merged_nothing_and_another_merges_all(
    run: Run, database: Database
) -> None:
    made = run.begin().prepared(rows(1, 2), rows(3))
    killed = committer(database, made, KillPoint.DRIVER_BETWEEN_END_TXN.value)
    assert killed.wait(120) == -signal.SIGKILL
    assert seen(database) == []
    assert run.commit(made).outcome is Outcome.COMMITTED
    assert seen(database) == [1, 2, 3]
    assert database.names() == []


@pytest.mark.parametrize("ends", ["killed", "woken"])
def test_a_merge_that_lands_late_is_the_only_one(ends: str, run: Run, database: Database, tmp_path: Path) -> None:
    """The first process stands still with its merge done and not committed; the driver recovers meanwhile."""
    made = run.begin().prepared(rows(1, 2))
    point = KillPoint.DRIVER_BETWEEN_END_TXN.value
    late = committer(database, made, f"{point}:1:stop", tmp_path)
    wait_until(lambda: (tmp_path / f"{point}:1").exists(), "it stands still")
    assert run.system.commit(run.author, made, give_up=lambda: True) == [], "nothing is proved while that is open"
    with beside(lambda: run.system.commit(run.author, made)[0].outcome) as done:
        late.send_signal(signal.SIGKILL if ends == "killed" else signal.SIGCONT)
        out, _ = late.communicate(timeout=120)
    assert done == [Outcome.COMMITTED]
    assert out.split() == (["committed"] if ends == "woken" else [])
    assert seen(database) == [1, 2]


def test_of_two_processes_that_merge_at_once_one_does_and_both_learn_it(run: Run, database: Database) -> None:
    made = run.begin().prepared(rows(1, 2), rows(3))
    with psycopg.connect(database.dsn) as stranger, ExitStack() as opened:
        stranger.execute("LOCK TABLE orders")
        both = [opened.enter_context(beside(lambda: run.system.commit(run.author, made)[0].outcome)) for _ in range(2)]
        wait_until(lambda: waiting_for_locks(database) == 2, "both wait")
        stranger.rollback()
    assert both == [[Outcome.COMMITTED]] * 2
    assert seen(database) == [1, 2, 3]


def test_rows_that_were_voted_for_survive_a_crash_of_the_server() -> None:
    with LocalPostgres() as server, database_on(server, "crash") as database:
        database.run(ORDERS)
        with running(database.dsn) as run:
            made = run.begin().prepared(rows(1, 2))
            server.restart()
            assert run.system.commit(run.author, made)[0].outcome is Outcome.COMMITTED
            with run.system.sessions.one(), run.system.sessions.one():
                pass  # two threads have worked
            server.restart()
            assert run.system.outcome(made[0]).outcome is Outcome.IN_DOUBT, "its session is lost, so it does not know"
            assert run.system.outcome(made[0]).outcome is Outcome.COMMITTED
        assert seen(database) == [1, 2]


# -- who may merge


def test_a_driver_that_slept_through_its_replacement_merges_and_sweeps_nothing(run: Run, database: Database) -> None:
    made = run.takes().prepared(rows(1))
    with running(database.dsn, generation=2) as newer:
        newer.takes(run.claim())
        with pytest.raises(FencedError, match="generation=2"):
            run.commit(made)
        with pytest.raises(FencedError, match="generation=2"):
            run.system.abort(run.author, made)
        with pytest.raises(FencedError, match="generation=2"):
            run.system.sweep(JOB)
        with pytest.raises(FencedError, match="generation=2"):
            run.session.pre_commit(1, [run.write(rows(2))], [], leftovers=False)  # type: ignore[arg-type]
        assert seen(database) == []
        assert newer.commit(made).outcome is Outcome.COMMITTED
    assert seen(database) == [1]


def test_a_claim_waits_for_the_merge_that_the_former_driver_has_begun(
    run: Run, database: Database, tmp_path: Path
) -> None:
    """Else the former driver could commit after the new one has looked."""
    made, point = run.takes().prepared(rows(1)), KillPoint.DRIVER_BETWEEN_END_TXN.value
    late = committer(database, made, f"{point}:1:stop", tmp_path)
    wait_until(lambda: (tmp_path / f"{point}:1").exists(), "it stands still")
    with running(database.dsn, generation=2) as newer:
        with beside(lambda: newer.takes(run.claim())) as done:
            wait_until(lambda: waiting_for_locks(database) == 1, "the claim waits")
            late.send_signal(signal.SIGCONT)
            assert late.communicate(timeout=120)[0].split() == ["committed"]
        assert done == [newer]
        assert newer.system.outcome(made[0]).outcome is Outcome.COMMITTED
    assert seen(database) == [1]


def test_a_process_without_a_claim_is_fenced_by_its_generation(run: Run, database: Database) -> None:
    """As a coordinator that settles for a dead driver, and is replaced."""
    made = run.takes().prepared(rows(1))
    with running(database.dsn, generation=2) as newer:
        newer.takes(run.claim())
    with pytest.raises(FencedError, match="generation=2"):
        PostgresSystem.open(database.dsn).commit(run.author, made)
    assert seen(database) == []


def test_a_forged_list_of_tables_reaches_no_other_job(run: Run, database: Database) -> None:
    """Nor a table that the sink has not staged: names are looked up among the author's own."""
    (made,) = run.begin().prepared(rows(1))
    database.run("CREATE TABLE onceward_sink.precious (a int)", "UPDATE onceward_sink.staged SET job = 'other'")
    tables = made.document.body["tables"]
    for names in (tables, [{"name": "precious", "slot": 0, "records": 0}]):
        forged = replace(made, document=replace(made.document, body={**made.document.body, "tables": names}))
        run.system.abort(run.author, [forged])
        assert run.commit([forged]).outcome is Outcome.LOST
    assert len(database.names()) == 2
    assert seen(database) == []


# -- a database that is not what it was


def test_a_database_that_went_back_is_noticed_when_the_claim_is_renewed(run: Run, database: Database) -> None:
    run.takes()
    run.system.renew_claim(run.claim(completed=5))
    database.run("UPDATE onceward_sink.claims SET completed = 4")
    with pytest.raises(ContradictionError, match="restored from a backup"):
        run.system.renew_claim(run.claim(completed=6))
    database.run("DELETE FROM onceward_sink.claims")
    with pytest.raises(ContradictionError, match="is gone"):
        run.system.renew_claim(run.claim(completed=6))


def test_a_database_without_the_last_receipt_gets_no_further_rows(run: Run, database: Database) -> None:
    first, second = run.takes().prepared(rows(1)), run.prepared(rows(2), checkpoint=2)
    run.commit(first)
    database.run("DELETE FROM onceward_sink.receipts")
    settlement = run.commit(second)
    assert (settlement.outcome, seen(database)) == (Outcome.IN_DOUBT, [1])
    assert "checkpoint 1 was merged before it, and its receipt is gone" in settlement.evidence
    with pytest.raises(ContradictionError, match="Bring the newest copy back"):
        run.system.confirm(first)


def test_a_checkpoint_that_was_aborted_or_is_written_again_is_not_waited_for(run: Run, database: Database) -> None:
    first, aborted = run.takes().prepared(rows(1)), run.prepared(rows(2), checkpoint=2)
    run.system.abort(run.author, aborted)
    third, lost = run.prepared(rows(3), checkpoint=3), run.prepared(rows(4), checkpoint=4)
    run.commit(first), run.commit(third)
    run.system.sweep(JOB)
    assert run.commit(lost).outcome is Outcome.LOST
    assert run.commit(run.prepared(rows(4), checkpoint=4)).outcome is Outcome.COMMITTED
    assert seen(database) == [1, 3, 4]


def test_rows_are_not_merged_into_a_copy_of_the_database(
    run: Run, database: Database, postgres: LocalPostgres, job: str
) -> None:
    """Even if the copy has the staging tables: what the former database did since is unknown."""
    made = run.takes().prepared(rows(1))
    run.session.close()
    name, former = f"copy-{job}", database.dsn.rpartition("/")[2]
    Database(postgres.url).run(
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{former}'",
        f'CREATE DATABASE "{name}" TEMPLATE "{former}"',
    )
    copy = Database(postgres.url.rpartition("/")[0] + f"/{name}")
    try:
        with running(copy.dsn, generation=2) as other:
            assert [found.message for found in other.findings if "restored from a dump" in found.message] != []
            settlement = other.begin().commit(made)
            assert (settlement.outcome, seen(copy)) == (Outcome.IN_DOUBT, [])
            assert "the one that answers now is another" in settlement.evidence
            assert other.system.outcome(made[0]).outcome is Outcome.IN_DOUBT
    finally:
        Database(postgres.url).run(f'DROP DATABASE "{name}" WITH (FORCE)')


def test_nothing_is_called_lost_on_another_timeline(run: Run, database: Database) -> None:
    """A restored server lacks more than the rows of one checkpoint."""
    (made,) = run.begin().prepared(rows(1))
    run.system.sweep(JOB)
    assert run.system.outcome(made).outcome is Outcome.LOST
    system = {**made.document.body["system"], "timeline": made.document.body["system"]["timeline"] + 1}
    before = replace(made, document=replace(made.document, body={**made.document.body, "system": system}))
    assert run.system.outcome(before).outcome is Outcome.IN_DOUBT
    assert run.commit([before]).outcome is Outcome.IN_DOUBT


def test_two_checkpoints_of_one_number_are_not_taken_for_one(run: Run, database: Database) -> None:
    """As after a restored copy of the store, which grants a number again."""
    first, second = run.begin().prepared(rows(1)), run.prepared(rows(2))
    run.commit(first)
    settlement = run.commit(second)
    assert (settlement.outcome, seen(database)) == (Outcome.IN_DOUBT, [1])
    assert "the receipt of this checkpoint is for other rows" in settlement.evidence


# -- a merge that PostgreSQL refuses


def test_a_refused_merge_leaves_all_rows_staged_until_the_cause_is_removed(run: Run, database: Database) -> None:
    database.run("ALTER TABLE orders ADD UNIQUE (a)", "INSERT INTO orders VALUES (2)")
    made = run.begin().prepared(rows(1), rows(2))
    settlement = run.commit(made)
    assert (settlement.outcome, seen(database)) == (Outcome.IN_DOUBT, [2])
    assert "duplicate key value" in settlement.evidence
    assert "(a)=(2)" in settlement.evidence
    database.run("DELETE FROM orders")
    assert run.commit(made).outcome is Outcome.COMMITTED
    assert seen(database) == [1, 2]


def test_a_trigger_that_drops_rows_is_noticed(run: Run, database: Database) -> None:
    database.run(
        "CREATE FUNCTION drops() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'",
        "CREATE TRIGGER drops BEFORE INSERT ON orders FOR EACH ROW WHEN (new.a = 2) EXECUTE FUNCTION drops()",
    )
    settlement = run.commit(run.begin().prepared(rows(1, 2)))
    assert (settlement.outcome, seen(database)) == (Outcome.IN_DOUBT, [])
    assert "has voted for 2 rows, and 1 of them" in settlement.evidence


def test_a_commit_waits_for_a_lock_on_the_table_and_ends_when_the_driver_leaves(run: Run, database: Database) -> None:
    made = run.begin().prepared(rows(1))
    with psycopg.connect(database.dsn) as stranger:
        stranger.execute("LOCK TABLE orders")
        assert run.system.commit(run.author, made, give_up=lambda: True) == []
    assert run.commit(made).outcome is Outcome.COMMITTED


def test_a_commit_that_is_confirmed_is_on_disk_whatever_the_roles_setting(run: Run, database: Database) -> None:
    name = database.dsn.rpartition("/")[2]
    database.run(f'ALTER DATABASE "{name}" SET synchronous_commit TO off')
    with running(database.dsn) as other, other.system.sessions.one() as (session, _):
        assert session.execute("SHOW synchronous_commit").fetchone() == ("on",)
    assert database.rows("SHOW synchronous_commit") == [("off",)]
