"""A store opens for one process, with one schema, in a trustworthy place; otherwise opening fails."""

import os
import re
import shutil
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from onceward.common.errors import ExitCode
from onceward.coordinator.store import filesystem
from onceward.coordinator.store.errors import StoreDamagedError, StoreError, StoreUnusableError
from onceward.coordinator.store.filesystem import filesystem_of, refuse_network_filesystem
from onceward.coordinator.store.lock import StoreLock
from onceward.coordinator.store.schema import SCHEMA_VERSION, checksum, meta
from onceward.coordinator.store.sqlite import connect, truncate_wal
from onceward.coordinator.store.store import Store
from tests.support.places import Place
from tests.support.stored_jobs import StoredJob

_OPEN = "import sys; from onceward.coordinator.store.store import Store; Store.open(sys.argv[1])"


def opened_elsewhere(url: str) -> str:
    """Return the error output of another process that tries to open the store."""
    command = [sys.executable, "-c", _OPEN, url]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stderr


def test_a_second_process_is_refused_with_the_holders_process_id(store: Store, place: Place) -> None:
    said = opened_elsewhere(place.url)
    assert "StoreUnusableError" in said
    holder = (
        rf"in use by another process \(onceward [^ ]+:{os.getpid()} at 127"
        if place.is_postgres
        else (f"in use by process {os.getpid()};")
    )
    assert re.search(holder, said)
    StoredJob(store).open()


def test_removing_the_lock_file_lets_no_second_process_in(sqlite: Store, file: Path) -> None:
    StoredJob(sqlite).open()
    file.with_name("store.db.lock").unlink()
    assert "StoreUnusableError" in opened_elsewhere(f"sqlite:///{file}")


def test_a_held_lock_is_refused_and_names_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "store.db.lock"
    held = StoreLock(path)
    for said, reported in ((b"", "process unknown;"), (b"4711\n", "process 4711;"), (b"\xff7\n", "process \ufffd7;")):
        path.write_bytes(said)
        with pytest.raises(StoreUnusableError, match=reported):
            StoreLock(path)
    held.release()


def test_a_released_lock_names_no_owner_and_is_released_only_once(tmp_path: Path) -> None:
    path = tmp_path / "store.db.lock"
    path.write_text("the number of a process that ended without a word\n")
    lock = StoreLock(path)
    assert path.read_text() == f"{os.getpid()}\n"
    lock.release()
    assert path.read_bytes() == b""
    with closing(path.open("w+")) as other:  # it may get the descriptor that the lock had
        other.write("not the lock's any more")
        other.flush()
        lock.release()
        assert path.read_text() == "not the lock's any more"
    assert os.fstat(1), "standard output is open still"


def test_only_the_owner_can_read_a_stores_files(file: Path) -> None:
    former = os.umask(0)
    try:
        store = Store.open(f"sqlite:///{file}")
    finally:
        os.umask(former)
    store.close()
    modes = {path.name: path.stat().st_mode & 0o777 for path in (file.parent, file.with_name("store.db.lock"))}
    assert modes == {file.parent.name: 0o700, "store.db.lock": 0o600}


def test_a_store_that_one_thread_opened_serves_another(place: Place) -> None:
    with ThreadPoolExecutor(1) as elsewhere:
        store = elsewhere.submit(place.open).result()
    with closing(store):
        StoredJob(store).open()


def test_a_new_store_is_in_its_file_at_once_so_that_a_lost_log_leaves_its_id(
    sqlite: Store, tmp_path: Path, file: Path
) -> None:
    copy = tmp_path / "store.db"
    shutil.copy(file, copy)
    with closing(Store.open(f"sqlite:///{copy}")) as without_log:
        assert without_log.store_id == sqlite.store_id


def test_a_log_with_another_reader_does_not_count_as_merged_into_the_file(tmp_path: Path) -> None:
    file = tmp_path / "any.db"
    with closing(sqlite3.connect(file, timeout=0)) as one, closing(sqlite3.connect(file)) as reader:
        one.execute("PRAGMA journal_mode=WAL")
        with one:
            one.execute("CREATE TABLE t (x)")
        truncate_wal(one)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM t").fetchall()
        with one:
            one.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(StoreError, match="another process reads it"):
            truncate_wal(one)


def test_a_directory_without_write_ahead_log_support_is_refused() -> None:
    with pytest.raises(StoreError, match="its mode is memory"):
        connect(Path(":memory:"))


def test_a_decision_is_on_disk_before_it_is_sent(file: Path) -> None:
    """NORMAL syncs decisions only when SQLite merges the log, so a power cut would lose the last ones."""
    file.parent.mkdir()
    engine, connection = connect(file)
    try:
        pragmas = [connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in ("journal_mode", "synchronous")]
    finally:
        connection.close()
        engine.dispose()
    assert pragmas == ["wal", 2]


def test_a_closed_store_can_be_opened_again(store: Store, place: Place) -> None:
    job = StoredJob(store)
    job.open()
    store_id = store.store_id
    with closing(place.reopened(store)) as again:
        assert again.store_id == store_id
        assert again.load_jobs() == [job.durable]


@pytest.mark.parametrize("version", ["5", str(SCHEMA_VERSION + 1), "0", "nonsense"])
def test_another_schema_version_is_refused_with_both_numbers(store: Store, place: Place, version: str) -> None:
    store.close()
    row = {"key": "schema_version", "value": version}
    place.change(
        f"UPDATE onceward_meta SET value = '{version}', checksum = '{checksum(meta, row)}' WHERE key = 'schema_version'"
    )
    both = f"schema version {version}, this program knows version {SCHEMA_VERSION}"
    with pytest.raises(StoreUnusableError, match=both) as refused:
        place.open()
    assert refused.value.exit_code is ExitCode.USAGE


def test_a_database_of_something_else_is_left_alone(place: Place) -> None:
    place.run("CREATE TABLE songs (title TEXT)")
    with pytest.raises(StoreUnusableError, match="songs"):
        place.open()


def test_a_foreign_database_is_reported_with_its_first_tables(place: Place) -> None:
    place.run(*(f"CREATE TABLE {letter} (x INTEGER)" for letter in "gfedcba"))
    with pytest.raises(StoreUnusableError, match=r"\(tables a, b, c, d, e\)"):
        place.open()


@pytest.mark.parametrize(
    ("statements", "error", "why"),
    [
        (["DROP TABLE losses", "DROP TABLE history"], StoreDamagedError, "lacks history, losses."),
        (["DELETE FROM onceward_meta WHERE key = 'store_id'"], StoreDamagedError, "lacks its identifier."),
        (["DELETE FROM onceward_meta WHERE key = 'schema_version'"], StoreUnusableError, "schema version none,"),
    ],
)
def test_an_incomplete_store_is_refused_with_the_missing_part(
    store: Store, place: Place, statements: list[str], error: type[StoreError], why: str
) -> None:
    store.close()
    place.run(*statements)
    with pytest.raises(error, match=why):
        place.open()


def test_a_refused_store_is_left_to_others(store: Store, place: Place) -> None:
    store.close()
    with place.raw() as raw:
        former = raw.exec_driver_sql("SELECT checksum FROM onceward_meta WHERE key = 'store_id'").scalar()
        raw.exec_driver_sql("UPDATE onceward_meta SET checksum = 'x' WHERE key = 'store_id'")
    with pytest.raises(Exception, match="record store_id") as refused:
        place.open()
    # while the refusal and its frames still exist
    place.change(f"UPDATE onceward_meta SET checksum = '{former}' WHERE key = 'store_id'")
    with closing(place.open()) as opened:
        assert opened.load_jobs() == []
    assert refused.traceback


@pytest.mark.parametrize(
    "url",
    [
        *("sqlite://", "sqlite:///:memory:", "mysql://host/db", "no url", "sqlite:///a?mode=ro"),
        *("sqlite:///file:a", "postgresql+psycopg://host/db", "postgresql://host/db?no_setting=1"),
    ],
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


def test_the_topmost_mount_decides_the_filesystem_of_a_directory() -> None:
    mounts = (
        "cut short\n"
        "/dev/vda / ext4 rw 0 0\n"
        "server:/x /mnt/teamX nfs4 rw 0 0\n"
        "/dev/vdb /mnt/twice ext4 rw 0 0\n"
        "server:/y /mnt/twice nfs rw 0 0\n"
        "server:/z /mnt/no\u00a0break cifs rw 0 0\n"
        "server:/w /mnt/few nfs"
    )
    found = {
        name: filesystem_of(Path("/mnt") / name / "state", mounts)
        for name in ("team", "teamX", "twice", "no\u00a0break", "few")
    }
    assert found == {"team": "ext4", "teamX": "nfs4", "twice": "nfs", "no\u00a0break": "cifs", "few": "nfs"}
    assert filesystem_of(Path("/srv"), "server:/x /mnt nfs rw 0 0\n") is None


def test_mounts_with_any_bytes_in_their_names_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listed = tmp_path / "mounts"
    monkeypatch.setattr(filesystem, "_MOUNTS", listed)
    refuse_network_filesystem(tmp_path)  # a system without a list of mounts
    listed.write_bytes(b"/dev/vda /mnt/\xff ext4 rw 0 0\nserver:/x / nfs rw 0 0\n")
    with pytest.raises(StoreUnusableError, match="nfs"):
        refuse_network_filesystem(tmp_path)


def test_a_directory_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(StoreUnusableError, match="cannot be opened"):
        Store.open(f"sqlite:///{tmp_path / 'file' / 'store.db'}")


@pytest.mark.parametrize(
    ("mount", "refused"),
    [
        ("C:\\134 /mnt 9p rw,noatime,aname=drvfs;path=C:\\;uid=1000,trans=fd 0 0", True),
        ("none /mnt 9p rw,trans=virtio,aname=disk 0 0", False),
        ("work /mnt vboxsf rw 0 0", True),
        ("grpcfuse /mnt fuse.grpcfuse rw 0 0", True),
        ("fuse-overlayfs /mnt fuse.fuse-overlayfs rw 0 0", False),
    ],
)
def test_a_folder_of_the_host_is_refused(mount: str, refused: bool) -> None:
    directory = Path("/mnt/store")
    if refused:
        with pytest.raises(StoreUnusableError, match="network filesystem"):
            refuse_network_filesystem(directory, mount)
    else:
        refuse_network_filesystem(directory, mount)
