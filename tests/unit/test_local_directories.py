"""Temporary directories of local servers: leftovers are removed; what others plant is neither awaited nor removed."""

import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from onceward.dev.kafka.places import DataDirectory


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    return tmp_path / "tmp"


@pytest.fixture
def planted(temporary: Path) -> Iterator[Path]:
    """The lock of a directory that looks like ours. A thread that waits for it is released at the end."""
    lock = temporary / "onceward-kafka-planted" / "owner.lock"
    lock.parent.mkdir()
    yield lock
    with suppress(OSError):
        os.close(os.open(lock, os.O_RDWR | os.O_NONBLOCK))


def begin_and_end() -> None:
    """Begin and end a server's temporary directory. Fails instead of waiting for ever."""
    pool = ThreadPoolExecutor(1)
    try:
        pool.submit(lambda: DataDirectory(None).release()).result(30)
    finally:
        pool.shutdown(wait=False)


def test_the_directory_of_a_killed_owner_is_removed(planted: Path) -> None:
    planted.touch()
    begin_and_end()
    assert not planted.parent.exists()


def test_the_directory_of_a_living_owner_stays(temporary: Path) -> None:
    living = DataDirectory(None)
    begin_and_end()
    assert living.directory.exists()
    living.release()
    assert list(temporary.iterdir()) == []


def test_a_planted_pipe_delays_no_start(planted: Path) -> None:
    os.mkfifo(planted)
    begin_and_end()
    assert planted.exists()


def test_a_planted_link_is_not_followed(planted: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.touch()
    planted.symlink_to(elsewhere)
    begin_and_end()
    assert planted.is_symlink()
    assert elsewhere.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a file of another user")
def test_the_directory_of_another_user_stays(planted: Path) -> None:
    planted.touch()
    os.chown(planted, 12_345, -1)
    begin_and_end()
    assert planted.exists()
