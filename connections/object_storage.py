"""A directory of an object store as a :class:`Storage`. Runs on executors too, where obstore must be installed.

An object is there as a whole or not at all, is durable once it is written, and is in every listing from then on. Not
every store refuses to create an object that is there already: the preflight of a sink tries it.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from tempfile import TemporaryFile
from typing import Any, BinaryIO, TypeAlias, cast

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store

from onceward.connections.object_options import ObjectOptions
from onceward.connections.per_process import PerProcess
from onceward.connections.storage import NewFile, StorageError

__all__ = ["ObjectStorage"]

_PART_BYTES = 8 * 2**20
"""Larger files are uploaded in parts of this size."""
_PARTS_AT_ONCE = 4
_RETRY_FOR = timedelta(seconds=30)
"""Callers try again; longer would only delay the end of a process that is asked to end."""
_FAILURES = (BaseError, OSError, ValueError)

_Key: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]
_STORES: PerProcess[_Key, S3Store] = PerProcess()


class ObjectStorage:
    """The objects whose names begin with a URI such as ``s3://bucket/table``."""

    def __init__(self, uri: str, options: ObjectOptions) -> None:
        self._uri, self._options = uri, options

    def create(self, name: str, content: bytes) -> bool:
        with self._asking("written", name), suppress(AlreadyExistsError):
            obstore.put(self._store, name, content, mode="create")
            return True
        return False

    def put(self, name: str, content: bytes) -> None:
        with self._asking("written", name):
            obstore.put(self._store, name, content)

    def read(self, name: str) -> bytes | None:
        with self._asking("read", name), suppress(FileNotFoundError):
            return bytes(obstore.get(self._store, name).bytes())
        return None

    def names(self, folder: str) -> Sequence[str]:
        with self._asking("listed", folder):
            found = obstore.list_with_delimiter(self._store, folder)["objects"]
        return [str(one["path"]).rpartition("/")[2] for one in found]

    def size(self, name: str) -> int | None:
        with self._asking("looked at", name), suppress(FileNotFoundError):
            return int(obstore.head(self._store, name)["size"])
        return None

    def delete(self, names: Iterable[str]) -> None:
        wanted = list(names)
        with self._asking("deleted", ", ".join(wanted[:1])), suppress(FileNotFoundError):
            if wanted:
                obstore.delete(self._store, wanted)

    def open(self, name: str) -> NewFile:
        return _NewObject(self, name)

    def flush(self, name: str) -> None:
        """Objects are durable already."""

    def flush_all(self) -> None:
        """Objects are durable already."""

    def upload(self, name: str, file: BinaryIO) -> None:
        """Write an object with the content of a file."""
        with self._asking("written", name):
            obstore.put(self._store, name, file, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE)

    @property
    def _store(self) -> S3Store:
        """The client of this process for the credentials as they are now: a file of them may be replaced."""
        options: Any = dict(self._options.resolved())
        stores, key = _STORES.mine(), (self._uri, tuple(options.items()))
        if key not in stores:
            http = options.pop("aws_allow_http", os.environ.get("AWS_ALLOW_HTTP", "")).lower() in ("true", "1")
            stores[key] = S3Store.from_url(
                self._uri,
                config=options,
                client_options={"allow_http": http},
                retry_config={"max_retries": 5, "retry_timeout": _RETRY_FOR},
            )
        return stores[key]

    @contextmanager
    def _asking(self, what: str, name: str) -> Iterator[None]:
        try:
            yield
        except _FAILURES as error:
            said, _, _ = self._options.without_secrets(str(error)).partition("\n")
            raise StorageError(
                f"{self._uri}/{name} could not be {what}: {said}. Nothing depends on it yet. Check the store, the "
                "network and the rights of these credentials; what can be repeated is tried again."
            ) from None  # the text of the cause may have secrets


class _NewObject:
    """A file on this machine until it is complete: then memory is bounded however many are open at a time, and one
    that is abandoned or whose process dies leaves nothing in the store."""

    def __init__(self, storage: ObjectStorage, name: str) -> None:
        self._storage, self._name = storage, name
        folder, _, _ = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")
        try:
            self.file = cast(BinaryIO, TemporaryFile(dir=folder or None))  # noqa: SIM115
        except OSError as error:
            raise StorageError(
                f"A file for {name} could not be made on this machine: {error}. Nothing of the checkpoint becomes "
                "visible. Free disk space, or give this process another directory by TMPDIR."
            ) from error
        self._uploaded = False

    def close(self) -> int:
        with self.file as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
            self._uploaded = True
            self._storage.upload(self._name, file)
        return size

    def discard(self) -> None:
        with suppress(OSError):
            self.file.close()
        if self._uploaded:
            with suppress(StorageError):
                self._storage.delete([self._name])
