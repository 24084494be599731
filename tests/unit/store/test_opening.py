"""A store is opened by one process, of one schema, in a place that can be trusted; or not at all."""

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from coordinator.errors import ExitCode
from coordinator.store.engine import connect
from coordinator.store.errors import StoreUnusableError
from coordinator.store.filesystem import filesystem_of, refuse_network_filesystem
from coordinator.store.schema import SCHEMA_VERSION, checksum, meta
from coordinator.store.store import Store
from tests.unit.store.jobs import StoredJob, reopened

_OPEN = "import sys; from coordinator.store.store import Store; Store.open(sys.argv[1])"


def opened_elsewhere(file: Path) -> str:
    """What another process says that tries to open the store."""
    command = [sys.executable, "-c", _OPEN, f"sqlite:///{file}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stderr


def test_a_second_process_is_refused_with_the_holders_process_id(store: Store, file: Path) -> None:
    said = opened_elsewhere(file)
    assert "StoreUnusableError" in said
    assert f"in use by process {os.getpid()}" in said
    StoredJob(store).open()


def test_removing_the_lock_file_lets_no_second_process_in(store: Store, file: Path) -> None:
    StoredJob(store).open()
    file.with_name("store.db.lock").unlink()
    assert "StoreUnusableError" in opened_elsewhere(file)


def test_a_decision_is_on_disk_before_it_is_told(file: Path) -> None:
    """NORMAL would lose the last decisions in a power cut: they are synced only when the log is folded in."""
    file.parent.mkdir()
    engine, connection = connect(file)
    try:
        pragmas = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous")]
    finally:
        connection.close()
        engine.dispose()
    assert pragmas == ["wal", 2]


def test_a_closed_store_can_be_opened_again(store: Store, file: Path) -> None:
    job = StoredJob(store)
    job.open()
    store_id = store.store_id
    with closing(reopened(store, file)) as again:
        assert again.store_id == store_id
        assert again.load_jobs() == [job.durable]


@pytest.mark.parametrize("version", [str(SCHEMA_VERSION - 1), str(SCHEMA_VERSION + 1), "0", "nonsense"])
def test_another_schema_version_is_refused_with_both_numbers(store: Store, file: Path, version: str) -> None:
    store.close()
    row = {"key": "schema_version", "value": version}
    with closing(sqlite3.connect(file)) as raw, raw:
        raw.execute(
            "UPDATE onceward_meta SET value = ?, checksum = ? WHERE key = 'schema_version'",
            (version, checksum(meta, row)),
        )
    both = f"schema version {version}, this program knows version {SCHEMA_VERSION}"
    with pytest.raises(StoreUnusableError, match=both) as refused:
        Store.open(f"sqlite:///{file}")
    assert refused.value.exit_code is ExitCode.USAGE


def test_a_database_of_something_else_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    with closing(sqlite3.connect(file)) as raw, raw:
        raw.execute("CREATE TABLE songs (title TEXT)")
    with pytest.raises(StoreUnusableError, match="songs"):
        Store.open(f"sqlite:///{file}")


def test_a_refused_store_is_left_to_others(store: Store, file: Path) -> None:
    store.close()
    with closing(sqlite3.connect(file)) as raw, raw:
        (former,) = raw.execute("SELECT checksum FROM onceward_meta WHERE key = 'store_id'").fetchone()
        raw.execute("UPDATE onceward_meta SET checksum = 'x' WHERE key = 'store_id'")
    with pytest.raises(Exception, match="record store_id") as refused:
        Store.open(f"sqlite:///{file}")
    with closing(sqlite3.connect(file, timeout=0)) as raw, raw:  # while the refusal and its frames are still there
        raw.execute("UPDATE onceward_meta SET checksum = ? WHERE key = 'store_id'", (former,))
    with closing(Store.open(f"sqlite:///{file}")) as opened:
        assert opened.load_jobs() == []
    assert refused.traceback


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///:memory:", "postgresql://host/db", "no url", "sqlite:///a?mode=ro"]
)
def test_urls_that_cannot_hold_decisions_are_refused(url: str) -> None:
    with pytest.raises(StoreUnusableError, match="Nothing was started"):
        Store.open(url)


def test_a_directory_on_a_network_filesystem_is_refused() -> None:
    mounts = (
        "/dev/vda / ext4 rw 0 0\n"
        "server:/share /mnt/team\\040share nfs4 rw 0 0\n"
        "tmpfs /mnt/team\\040share/fast tmpfs rw 0 0\n"
    )
    with pytest.raises(StoreUnusableError, match="nfs4"):
        refuse_network_filesystem(Path("/mnt/team share/state"), mounts)
    refuse_network_filesystem(Path("/mnt/team share/fast/state"), mounts)
    refuse_network_filesystem(Path("/mnt/team"), mounts)
    assert filesystem_of(Path("/mnt/team shared"), mounts) == "ext4"


def test_a_directory_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(StoreUnusableError, match="cannot be opened"):
        Store.open(f"sqlite:///{tmp_path / 'file' / 'store.db'}")
