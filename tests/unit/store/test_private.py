"""No other user of the machine can plant, replace, change or read a file that decides for a job."""

import os
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from onceward.coordinator.service.embedded import EmbeddedCoordinator
from onceward.coordinator.store.errors import StoreUnusableError
from onceward.coordinator.store.private import make_private_directory, make_private_file, require_private_directory
from onceward.coordinator.store.store import Store
from onceward.operate.connecting import CoordinatorLocation, operators
from tests.support.stored_jobs import StoredJob


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's."""
    with TemporaryDirectory() as path:
        yield Path(path)


@pytest.fixture(params=[0o000, 0o022, 0o277], ids=oct)
def umask(request: pytest.FixtureRequest, short: Path) -> Iterator[None]:
    former = os.umask(request.param)
    yield
    os.umask(former)


@pytest.mark.usefixtures("umask")
def test_a_new_directory_and_its_files_are_of_this_user_alone_whatever_the_umask(short: Path) -> None:
    place = short / "state"
    with EmbeddedCoordinator(place) as coordinator:
        modes = {path.relative_to(place).as_posix(): mode_of(path) for path in place.rglob("*")}
        assert coordinator.address == f"unix:{place}/socket/coordinator.sock"
    assert mode_of(place) == modes.pop("socket") == 0o700
    modes.pop("socket/coordinator.sock")  # its mode is gRPC's; only this user may enter its directory
    assert set(modes) >= {"store.db", "store.db-wal", "store.db.lock", "coordinator.address"}
    assert set(modes.values()) == {0o600}


def test_files_of_an_earlier_release_that_others_can_read_are_closed_to_them(tmp_path: Path) -> None:
    place, file = tmp_path / "state", tmp_path / "state" / "store.db"
    with closing(Store.open(f"sqlite:///{file}")) as store:
        StoredJob(store).open()
    for path in (file, file.with_name("store.db.lock")):
        path.chmod(0o644)
    (file.with_name("store.db-wal")).touch(mode=0o644)
    place.chmod(0o755)
    with closing(Store.open(f"sqlite:///{file}")) as store:
        assert len(store.load_jobs()) == 1
        assert {mode_of(path) for path in place.iterdir()} == {0o600}


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o775, 0o1777], ids=oct)
def test_a_directory_in_which_others_may_write_is_refused_and_left_alone(tmp_path: Path, mode: int) -> None:
    place = tmp_path / "state"
    place.mkdir()
    place.chmod(mode)
    with pytest.raises(StoreUnusableError, match=rf"written by others \(mode {mode:04o}\).*chmod go-w"):
        EmbeddedCoordinator(place)
    assert list(place.iterdir()) == []
    (place / "coordinator.address").write_text("unix:/tmp/planted.sock")
    with pytest.raises(StoreUnusableError, match="written by others"), operators(location(place)):
        pass


def test_a_directory_or_file_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "store.db"
    file.touch(mode=0o600)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    refusals = (make_private_directory, require_private_directory, make_private_file)
    for refuse, path in zip(refusals, (tmp_path, tmp_path, file), strict=True):
        with pytest.raises(StoreUnusableError, match=f"belongs to the user with id {os.getuid()}"):
            refuse(path)


@pytest.mark.parametrize("name", ["store.db", "store.db-wal", "store.db.lock"])
@pytest.mark.parametrize("planted", ["a link", "a pipe", "a file for all"])
def test_a_planted_file_is_neither_followed_nor_read(tmp_path: Path, name: str, planted: str) -> None:
    place, elsewhere = tmp_path / "state", tmp_path / "elsewhere"
    place.mkdir(mode=0o700)
    elsewhere.write_bytes(b"")
    path = place / name
    match planted:
        case "a link":
            path.symlink_to(elsewhere)
        case "a pipe":
            os.mkfifo(path)
        case _:
            path.touch()
            path.chmod(0o666)
    with pytest.raises(StoreUnusableError, match=name):
        Store.open(f"sqlite:///{place / 'store.db'}")
    assert elsewhere.read_bytes() == b""


def test_a_linked_directory_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "state").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreUnusableError, match="symbolic link"):
        EmbeddedCoordinator(tmp_path / "state")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def location(place: Path) -> CoordinatorLocation:
    return CoordinatorLocation(coordinator=None, state_dir=place)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)
