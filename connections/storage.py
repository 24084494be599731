"""Files in a directory, as far as exactly-once commits need them. Tables of a lake keep their data and claims so.

Imported on executors: standard library only.
"""

import os
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Protocol

from onceward.common.errors import OncewardError

__all__ = ["LocalStorage", "NewFile", "Storage", "StorageError"]


class StorageError(OncewardError):
    """The storage gave no usable answer. Whether the last change was made is unknown; retrying is safe."""


class NewFile(Protocol):
    """A file that is being written."""

    file: BinaryIO

    def close(self) -> int:
        """Make the file durable under its name, and return its size. Raises StorageError."""

    def discard(self) -> None:
        """Remove it, as far as possible. Must not raise."""


class Storage(Protocol):
    """A directory. Names are relative to it, with ``/`` between folders. All methods raise StorageError."""

    def create(self, name: str, content: bytes) -> bool:
        """Write a file, at once and durably, only if there is none of this name. Return whether it was written."""

    def put(self, name: str, content: bytes) -> None:
        """Write a small file that may be lost with its machine."""

    def read(self, name: str) -> bytes | None:
        """Return the content of a small file; None if there is none."""

    def names(self, folder: str) -> Sequence[str]:
        """Return the names of the files in a folder, without the folder; none if it does not exist. Contains every file
        that is there during the whole call."""

    def size(self, name: str) -> int | None:
        """Return the size of a file; None if there is certainly none."""

    def delete(self, names: Iterable[str]) -> None:
        """Delete files; those that are gone already count as deleted."""

    def open(self, name: str) -> NewFile:
        """Begin to write a file of a new name."""

    def flush(self, name: str) -> None:
        """Make a file durable that was written without that; one that is gone is skipped."""

    def flush_all(self) -> None:
        """Make all files durable, of all programs."""


class LocalStorage:
    """A directory of this machine, or one that is mounted the same on all machines. It needs hard links."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)

    def create(self, name: str, content: bytes) -> bool:
        path = self._root / name
        # Linked once it is complete: a reader never sees a part, and a link is refused where the name is taken.
        new = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            with self._created(new) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.link(new, path)
            _flush(path.parent)
        except FileExistsError:
            return False
        except OSError as error:
            raise _failed("written", path, error) from error
        finally:
            with suppress(OSError):
                new.unlink()
        return True

    def put(self, name: str, content: bytes) -> None:
        path = self._root / name
        try:
            with self._created(path) as file:
                file.write(content)
        except OSError as error:
            raise _failed("written", path, error) from error

    def read(self, name: str) -> bytes | None:
        path = self._root / name
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _failed("read", path, error) from error

    def names(self, folder: str) -> Sequence[str]:
        path = self._root / folder
        try:
            return [one for one in os.listdir(path) if not one.startswith(".")]
        except FileNotFoundError as error:
            if not self._root.is_dir():  # such as a disk that is not mounted
                raise _failed("listed", path, error) from error
            return []
        except OSError as error:
            raise _failed("listed", path, error) from error

    def size(self, name: str) -> int | None:
        path = self._root / name
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _failed("looked at", path, error) from error

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            path = self._root / name
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise _failed("deleted", path, error) from error

    def open(self, name: str) -> NewFile:
        path = self._root / name
        try:
            return _LocalFile(path, self._created(path))
        except OSError as error:
            raise _failed("created", path, error) from error

    def flush(self, name: str) -> None:
        path = self._root / name
        try:
            _flush(path)
            _flush(path.parent)
        except FileNotFoundError:
            pass  # it was deleted since: others have seen it, and have done without it
        except OSError as error:
            raise _failed("flushed", path, error) from error

    def flush_all(self) -> None:
        os.sync()

    def _created(self, path: Path) -> BinaryIO:
        """Open a new file for writing, in a folder that is made if there is none. The directory itself is not."""
        try:
            return path.open("xb")
        except FileNotFoundError:
            for folder in reversed(path.parents):
                if self._root in folder.parents:
                    with suppress(FileExistsError):
                        folder.mkdir()
                        _flush(folder.parent)
            return path.open("xb")


class _LocalFile:
    def __init__(self, path: Path, file: BinaryIO) -> None:
        self.file = file
        self._path = path

    def close(self) -> int:
        try:
            with self.file as file:
                file.flush()
                os.fsync(file.fileno())
                size = os.fstat(file.fileno()).st_size
            _flush(self._path.parent)
        except OSError as error:
            raise _failed("written", self._path, error) from error
        return size

    def discard(self) -> None:
        with suppress(OSError):
            self.file.close()
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Make the content of a file durable, or the names in a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _failed(what: str, path: Path, error: OSError) -> StorageError:
    return StorageError(
        f"{path} could not be {what}: {error.strerror or error}. Nothing depends on it yet. Check the disk, its free "
        "space and the rights of this user; what can be repeated is tried again."
    )
