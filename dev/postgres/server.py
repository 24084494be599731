"""One PostgreSQL on loopback that ends with its owner, however the owner ends."""

import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import psycopg

from onceward.dev.errors import LocalPostgresError
from onceward.dev.jars import Progress
from onceward.dev.kafka.places import DataDirectory, free_ports
from onceward.dev.managed_process import ManagedProcess, NotStartedError
from onceward.dev.postgres.binaries import postgres_programs
from onceward.dev.supervisor import as_user

__all__ = ["DATABASE", "LocalPostgres"]

DATABASE = "onceward"
"""The database that is made, and the superuser who owns it and needs no password."""

_HOST = "127.0.0.1"
_START_LIMIT_S = 60.0
_STOP_LIMIT_S = 10.0
_TRIES_FOR_PORTS = 3
_UNPRIVILEGED = 65534
"""Number of the user, and of the group, that owns nothing."""
# Small: it shares two cores with whatever uses it.
_SETTINGS = {"shared_buffers": "32MB", "max_connections": "50", "autovacuum_naptime": "10min"}
_HBA = f"""\
host all {DATABASE} {_HOST}/32 trust
host all all {_HOST}/32 scram-sha-256
"""


class LocalPostgres:
    """A context manager. Not thread-safe.

    PostgreSQL refuses to run as root. Its process then belongs to the user that owns nothing, who can reach neither
    root's cache nor most directories: programs and data are in the server's own directory.
    """

    def __init__(
        self,
        directory: Path | None = None,
        *,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        progress: Progress | None = None,
    ) -> None:
        """``directory``: where the data is kept; None for a temporary one. ``port``: None for a free one.
        ``settings``: PostgreSQL's own, beside ours."""
        self._wanted_directory = directory
        self._wanted_port = port
        self._settings = {**_SETTINGS, **(settings or {})}
        self._progress = progress
        self._user = str(_UNPRIVILEGED) if os.geteuid() == 0 else ""
        self._place: DataDirectory | None = None
        self._process: ManagedProcess | None = None
        self.port = 0

    @property
    def url(self) -> str:
        """Of the database, for ``--store`` and for any client."""
        return f"postgresql://{DATABASE}@{_HOST}:{self.port}/{DATABASE}"

    @property
    def directory(self) -> Path:
        assert self._place is not None, "it is not started"
        return self._place.directory

    @property
    def pid(self) -> int | None:
        """Process id of the server while it runs."""
        return self._process.pid if self._process is not None and self._process.exit_code is None else None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server and wait until the database takes connections (a second; the very first time, its jar is
        fetched). Raises `LocalServerError` with the server's own output; then nothing keeps running."""
        programs = postgres_programs(self._progress)
        self._place = place = DataDirectory(self._wanted_directory, "PostgreSQL")
        try:
            self._programs = self._reachable(programs)
            self._initialise()
            for tries_left in reversed(range(_TRIES_FOR_PORTS)):
                self.port = free_ports(1, self._wanted_port)[0].client
                self._launch(place)
                if self._wait():
                    break
                # Another process took a port that was free a moment ago.
                if tries_left == 0 or "could not bind" not in self.log():
                    raise LocalPostgresError(f"PostgreSQL did not start. The end of its log:\n{self.log()}")
            self._make_database()
        except BaseException:
            self.stop()
            raise

    def restart(self) -> None:
        """Start the server again on the same data and port; kills it first if it still runs."""
        assert self._place is not None, "it is not started"
        self.kill()
        self._launch(self._place)
        if not self._wait():
            raise LocalPostgresError(f"PostgreSQL did not start again. The end of its log:\n{self.log()}")

    def kill(self) -> None:
        """End the server as a crash would; return when it is gone. Data and port remain for `restart`."""
        if self._process is not None:
            # What SIGKILL does to its children and its shared memory, the server does itself after this signal.
            self._process.send(signal.SIGQUIT)
            self._process.wait(_STOP_LIMIT_S)
            self._process.end()
            self._process = None

    def stop(self) -> None:
        """Shut down: connections are closed, everything is written. Removes a temporary directory. May be called
        twice."""
        if self._process is not None:
            self._process.send(signal.SIGINT)
            self._process.wait(_STOP_LIMIT_S)
            self._process.end()
            self._process = None
        if self._place is not None:
            self._place.release()
            self._place = None

    def log(self) -> str:
        """Return the end of the server's log."""
        return self._process.tail() if self._process is not None else ""

    def _reachable(self, programs: Path) -> Path:
        if not self._user:
            return programs
        self.directory.chmod(0o711)
        copied = self.directory / f"programs-{programs.name}"
        if not copied.is_dir():
            shutil.copytree(programs, copied, symlinks=True)
        return copied

    def _initialise(self) -> None:
        self._data = self.directory / "data"
        if (self._data / "PG_VERSION").exists():
            return
        self._data.mkdir(mode=0o700, exist_ok=True)
        if self._user:
            os.chown(self._data, int(self._user), int(self._user))
        command = [str(self._programs / "bin" / "initdb"), "-D", str(self._data), "-U", DATABASE, "-A", "trust"]
        command += ["-E", "UTF8", "--locale=C", "--no-instructions"]
        made = subprocess.run(
            command,
            cwd=self._programs,
            capture_output=True,
            text=True,
            check=False,
            **as_user(self._user),
        )
        if made.returncode != 0:
            raise LocalPostgresError(f"PostgreSQL's data could not be made in {self._data}: {made.stderr.strip()}")
        (self._data / "pg_hba.conf").write_text(_HBA, encoding="ascii")

    def _launch(self, place: DataDirectory) -> None:
        ours = {"port": str(self.port), "listen_addresses": _HOST, "unix_socket_directories": ""}
        options = [word for name, value in {**self._settings, **ours}.items() for word in ("-c", f"{name}={value}")]
        try:
            self._process = ManagedProcess(
                "PostgreSQL",
                [str(self._programs / "bin" / "postgres"), "-D", str(self._data), *options],
                place.directory / "output.log",
                directory=self._programs,
                remove=place.directory if place.temporary else None,
                inherits=[place.lock_descriptor],
                user=self._user,
            )
        except NotStartedError as error:
            raise LocalPostgresError(str(error)) from error

    def _wait(self) -> bool:
        """Wait until it takes connections; False if it has ended instead."""
        assert self._process is not None
        limit = time.monotonic() + _START_LIMIT_S
        while self._process.exit_code is None:
            try:
                psycopg.connect(self._maintenance, connect_timeout=2).close()
            except psycopg.OperationalError as error:
                if time.monotonic() > limit:
                    raise LocalPostgresError(f"PostgreSQL does not take connections: {error}\n{self.log()}") from error
                time.sleep(0.02)
            else:
                return True
        return False

    def _make_database(self) -> None:
        with psycopg.connect(self._maintenance, autocommit=True) as connection:
            if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,)).fetchone() is None:
                connection.execute(f"CREATE DATABASE {DATABASE}")

    @property
    def _maintenance(self) -> str:
        return self.url.removesuffix(DATABASE) + "postgres"
