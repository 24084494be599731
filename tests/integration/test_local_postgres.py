"""A PostgreSQL of our own: usable when it starts, gone when its owner is gone, its data kept where it was asked for."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from onceward.coordinator.dev.errors import LocalServerError
from onceward.coordinator.dev.postgres.server import LocalPostgres
from tests.support.waiting import wait_until

OWNER = """
import time
from onceward.coordinator.dev.postgres.server import LocalPostgres
with LocalPostgres() as postgres:
    print(postgres.pid, postgres.directory, flush=True)
    time.sleep(600)
"""


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_postgres_whose_owner_is_killed_ends_and_leaves_nothing() -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        pid, directory = owner.stdout.readline().split()
        assert alive(int(pid))
        owner.send_signal(signal.SIGKILL)
        wait_until(lambda: not alive(int(pid)), "the server is gone")
        wait_until(lambda: not Path(directory).exists(), "its directory is gone")
    finally:
        owner.kill()
        owner.communicate()


def test_data_outlives_a_crash_and_a_stop_where_a_directory_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with LocalPostgres(tmp_path / "kept") as postgres:
        with psycopg.connect(postgres.url) as connection:
            connection.execute("CREATE TABLE kept (number integer)")
        postgres.restart()
        with psycopg.connect(postgres.url) as connection:
            connection.execute("INSERT INTO kept VALUES (7)")
        with pytest.raises(LocalServerError, match="in use by another local PostgreSQL"):
            LocalPostgres(tmp_path / "kept").start()
    with LocalPostgres(tmp_path / "kept") as again, psycopg.connect(again.url) as connection:
        assert connection.execute("SELECT number FROM kept").fetchall() == [(7,)]
