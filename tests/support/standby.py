"""A PostgreSQL server that follows another one, and can take its place."""

import os
import subprocess
from pathlib import Path

import psycopg

from onceward.dev.postgres.server import DATABASE, LocalPostgres
from tests.support.database import Database
from tests.support.waiting import wait_until

__all__ = ["UNFLUSHED", "Standby", "of_either"]

UNFLUSHED = {"fsync": "off"}
"""For servers that are killed on a machine that runs on: quicker, and nothing is lost."""

_HOST = "127.0.0.1"


class Standby(LocalPostgres):
    """Streams from ``primary``, which runs. There is no pg_basebackup among the programs that are published, so it
    copies the primary's files between the two calls that make a backup of them."""

    def __init__(self, primary: LocalPostgres) -> None:
        super().__init__(settings=UNFLUSHED)
        self._primary = primary

    def cut(self) -> None:
        """Receive nothing more."""
        Database(self.url).run("ALTER SYSTEM SET primary_conninfo TO ''", "SELECT pg_reload_conf()")
        receiving = "SELECT 1 FROM pg_stat_wal_receiver"
        wait_until(lambda: Database(self.url).rows(receiving) == [], "the standby receives nothing")

    def promote(self) -> None:
        Database(self.url).run("SELECT pg_promote(wait := false)")
        wait_until(lambda: Database(self.url).rows("SELECT pg_is_in_recovery()") == [(False,)], "it is promoted")

    def catch_up(self) -> None:
        """Wait until it shows what the primary shows now."""
        ((position,),) = Database(self._primary.url).rows("SELECT pg_current_wal_insert_lsn()")
        reached = f"SELECT pg_last_wal_replay_lsn() >= '{position}'"
        wait_until(lambda: Database(self.url).rows(reached) == [(True,)], "the standby has caught up")

    def hold_commits(self) -> None:
        """Let each commit of the primary wait for this standby."""
        primary = Database(self._primary.url)
        primary.run("ALTER SYSTEM SET synchronous_standby_names TO '*'", "SELECT pg_reload_conf()")
        states = "SELECT sync_state FROM pg_stat_replication"
        wait_until(lambda: primary.rows(states) == [("sync",)], "commits wait for the standby")

    def _reachable(self, programs: Path) -> Path:
        """Those that the primary has copied, if it has."""
        self.directory.chmod(0o711)
        return self._primary._programs

    def _initialise(self) -> None:
        self._data = self.directory / "data"
        source = self._primary.directory / "data"
        with (source / "pg_hba.conf").open("a", encoding="ascii") as rules:
            rules.write(f"host replication {DATABASE} {_HOST}/32 trust\n")
        with psycopg.connect(self._primary.url, autocommit=True) as session:
            old = session.info.server_version < 150000
            session.execute("SELECT pg_reload_conf()")
            session.execute(
                "SELECT pg_start_backup('standby', true, false)" if old else "SELECT pg_backup_start('standby', true)"
            )
            subprocess.run(["cp", "-a", str(source), str(self._data)], check=True)
            row = session.execute(
                "SELECT labelfile FROM pg_stop_backup(false, false)"
                if old
                else "SELECT labelfile FROM pg_backup_stop(false)"
            ).fetchone()
        assert row is not None, "a function has one answer"
        for name in ("postmaster.pid", "postmaster.opts"):
            (self._data / name).unlink()
        added = {
            "backup_label": str(row[0]),
            "standby.signal": "",
            "postgresql.auto.conf": f"primary_conninfo = 'host={_HOST} port={self._primary.port} user={DATABASE}'\n",
        }
        for name, text in added.items():
            (self._data / name).write_text(text, encoding="ascii")
            if self._user:
                os.chown(self._data / name, int(self._user), int(self._user))

    def _make_database(self) -> None:
        """It has the primary's."""


def of_either(primary: LocalPostgres, standby: Standby) -> str:
    """A connection string that leads to whichever of the two takes writes."""
    hosts = f"{_HOST}:{primary.port},{_HOST}:{standby.port}"
    return f"postgresql://{DATABASE}@{hosts}/{DATABASE}?target_session_attrs=read-write"
