"""Refuses places in which other users of this machine could plant, replace or change a file: a user who writes there
decides for the job."""

import errno
import os
import stat
from pathlib import Path

from onceward.coordinator.store.errors import StoreUnusableError

__all__ = ["make_private_directory", "make_private_file", "require_private_directory"]

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_PRIVATE_FILE = 0o600


def make_private_directory(directory: Path) -> None:
    """Create ``directory`` and its parents, for this user alone whatever the umask, or check the one that is there.
    Raises StoreUnusableError, OSError."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    try:
        directory.mkdir(mode=0o700)
        directory.chmod(0o700)  # the umask may have taken too much
    except FileExistsError:
        require_private_directory(directory)


def require_private_directory(directory: Path) -> None:
    """Check that ``directory`` is no link, belongs to this user, and that no other user may write there. Raises
    StoreUnusableError, OSError if it cannot be looked at."""
    found = os.lstat(directory)
    if stat.S_ISLNK(found.st_mode):
        raise _refused(directory, "is a symbolic link", "Name the directory itself")
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory))
    if found.st_uid != os.geteuid():
        raise _refused(directory, _owned_by(found), "Use a directory of your own, or run as its owner")
    if found.st_mode & _OTHERS_WRITE:
        raise _refused(directory, f"may be written by others (mode {_mode(found)})", f"Run: chmod go-w {directory}")


def make_private_file(file: Path) -> None:
    """Create an empty ``file`` in a private directory, or check the one that is there; only this user can read it
    afterwards. Raises StoreUnusableError, OSError."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _PRIVATE_FILE)
    except FileExistsError:
        # not followed and not opened: it may be a pipe, and SQLite's locks end when a descriptor of the file is closed
        found = os.lstat(file)
        if not stat.S_ISREG(found.st_mode):
            raise _refused(file, "is a symbolic link or no file", "Name the file itself") from None
        if found.st_uid != os.geteuid():
            raise _refused(file, _owned_by(found), "Use a store of your own, or run as its owner") from None
        if found.st_mode & _OTHERS_WRITE:
            why = f"may be written by others (mode {_mode(found)})"
            raise _refused(file, why, f"If you trust its content, run: chmod go-w {file}") from None
        if stat.S_IMODE(found.st_mode) != _PRIVATE_FILE:
            file.chmod(_PRIVATE_FILE)
    else:
        os.fchmod(descriptor, _PRIVATE_FILE)  # the umask may have taken too much
        os.close(descriptor)


def _owned_by(found: os.stat_result) -> str:
    return f"belongs to the user with id {found.st_uid}, and this process runs as {os.geteuid()}"


def _mode(found: os.stat_result) -> str:
    return f"{stat.S_IMODE(found.st_mode):04o}"


def _refused(path: Path, why: str, remedy: str) -> StoreUnusableError:
    return StoreUnusableError(
        f"{path} {why}: other users of this machine could change what a job has decided, and so its output. Nothing "
        f"was started or changed. {remedy}."
    )
