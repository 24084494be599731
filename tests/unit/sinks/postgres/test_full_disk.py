"""The disk of the database's server is full: nothing is half written, the cause is named, and it passes."""

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg
import pytest

from onceward.dev.postgres.server import LocalPostgres
from onceward.protocol.values import Committable, Outcome
from onceward.sinks.postgres.errors import StagingError
from tests.support.database import Database
from tests.support.small_disk import fill, free, on_a_small_disk
from tests.support.waiting import wait_until
from tests.unit.sinks.postgres.test_merges import ORDERS, rows
from tests.unit.sinks.postgres.written import Run, running

_ROWS = 20_000
_TRY = "from tests.unit.sinks.postgres.test_full_disk import {} as run; import sys; run(sys.argv[1])"


@pytest.mark.slow
@pytest.mark.parametrize("what", ["stage_and_merge_on_a_full_disk", "merge_after_the_server_died_of_a_full_disk"])
def test_a_checkpoint_waits_for_space_at_the_server_and_is_merged_once(what: str) -> None:
    # not below pytest's directory, which each run of pytest closes for other users: the server runs as one
    with tempfile.TemporaryDirectory(prefix="onceward-disk-") as name:
        disk = Path(name)
        if os.geteuid() != 0 or on_a_small_disk(disk, "true", megabytes=8).returncode != 0:
            pytest.skip("a file system in memory cannot be mounted here for another user")
        ran = on_a_small_disk(disk, sys.executable, "-c", _TRY.format(what), name, megabytes=240)
    assert (ran.returncode, ran.stdout) == (0, "merged once\n"), ran.stderr


@contextmanager
def _full(disk: Path) -> Iterator[tuple[LocalPostgres, Run, tuple[Committable, ...]]]:
    """A server whose disk is full, and a staged checkpoint. Runs in a process of its own, which alone sees the disk."""
    disk.chmod(0o711)
    with LocalPostgres(disk) as server:
        Database(server.url).run(ORDERS)
        with running(server.url) as run:
            made = run.takes().prepared(rows(*range(_ROWS)))
            fill(disk)
            yield server, run, made
    print("merged once")


def stage_and_merge_on_a_full_disk(at: str) -> None:
    with _full(Path(at)) as (server, run, made):
        with pytest.raises(StagingError, match=r"No space left on device \(SQLSTATE 53100\)") as refused:
            run.write(rows(*range(_ROWS)), checkpoint=2)
        explained = run.session.explain(str(refused.value))
        assert explained is not None
        assert (explained.by_record, "Give the server what it lacks" in explained.text) == (False, True)
        assert run.system.commit(run.author, made, give_up=lambda: True) == []
        (trouble,) = run.links.troubles()
        assert "No space left on device" in trouble.why
        assert run.system.outcome(made[0]).outcome is Outcome.IN_DOUBT
        assert _count(server) == 0
        free(Path(at))
        assert run.commit(made).outcome is Outcome.COMMITTED
        assert run.links.troubles() == ()
        assert run.commit(run.prepared(rows(*range(_ROWS)), checkpoint=2)).outcome is Outcome.COMMITTED
        assert _count(server) == 2 * _ROWS


def merge_after_the_server_died_of_a_full_disk(at: str) -> None:
    """Without space for its log the server ends itself."""
    with _full(Path(at)) as (server, run, made):
        wait_until(lambda: _ends_itself(server), "the server has no space for its log")
        assert run.system.commit(run.author, made, give_up=lambda: True) == []
        assert run.system.outcome(made[0]).outcome is Outcome.IN_DOUBT
        free(Path(at))
        server.restart()
        assert run.system.commit(run.author, made)[0].outcome is Outcome.COMMITTED
        assert _count(server) == _ROWS


def _ends_itself(server: LocalPostgres) -> bool:
    with suppress(psycopg.OperationalError):
        Database(server.url).run("SELECT pg_logical_emit_message(false, '', '')", "SELECT pg_switch_wal()")
    return server.pid is None


def _count(server: LocalPostgres) -> int:
    ((count,),) = Database(server.url).rows("SELECT count(*) FROM orders")
    assert isinstance(count, int)
    return count
