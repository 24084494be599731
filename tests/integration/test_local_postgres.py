"""A PostgreSQL of our own: usable when it starts, gone when its owner is gone, its data kept where it was asked for."""

import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from onceward.dev.errors import LocalServerError
from onceward.dev.postgres.server import LocalPostgres
from tests.support.processes import exists
from tests.support.waiting import wait_until

OWNER = """
import time
from onceward.dev.postgres.server import LocalPostgres
with LocalPostgres() as postgres:
    print(postgres.pid, postgres.directory, flush=True)
    time.sleep(600)
"""


def test_a_postgres_whose_owner_is_killed_ends_and_leaves_nothing() -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    try:
        assert owner.stdout is not None
        pid, directory = owner.stdout.readline().split()
        assert exists(int(pid))
        owner.send_signal(signal.SIGKILL)
        wait_until(lambda: not exists(int(pid)), "the server is gone")
        wait_until(lambda: not Path(directory).exists(), "its directory is gone")
    finally:
        owner.kill()
        owner.communicate()


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A directory that the server's user can reach; pytest's own are not."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        yield Path(directory)


def test_data_outlives_a_crash_and_a_stop_where_a_directory_is_named(reachable: Path) -> None:
    with LocalPostgres(reachable / "kept") as postgres:
        with psycopg.connect(postgres.url) as connection:
            connection.execute("CREATE TABLE kept (number integer)")
        postgres.restart()
        with psycopg.connect(postgres.url) as connection:
            connection.execute("INSERT INTO kept VALUES (7)")
        with pytest.raises(LocalServerError, match="in use by another local PostgreSQL"):
            LocalPostgres(reachable / "kept").start()
    with LocalPostgres(reachable / "kept") as again, psycopg.connect(again.url) as connection:
        assert connection.execute("SELECT number FROM kept").fetchall() == [(7,)]


def test_dev_postgres_prints_a_url_that_serve_takes_and_ends_with_a_signal() -> None:
    command = [sys.executable, "-m", "onceward.operate", "dev", "postgres"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        url = server.stdout.readline().strip()
        serve = [*command[:-2], "serve", "--listen", "127.0.0.1:0", "--store", url]
        with subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as coordinator:
            assert coordinator.stdout is not None
            said = coordinator.stdout.readline()
            assert re.fullmatch(rf"onceward coordinator listens on \S+, store {re.escape(url)} \(\S+\)\n", said)
            server.send_signal(signal.SIGTERM)
            assert server.wait(60) == 0
            # an idle coordinator finds out with its next write, at the latest when it is stopped
            coordinator.send_signal(signal.SIGTERM)
            assert coordinator.wait(60) in (0, 6)
