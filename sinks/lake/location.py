"""Where a table is, and how to reach it.

Imported on executors: standard library only.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from onceward.common.errors import ConfigurationError
from onceward.connections.object_options import ObjectOptions
from onceward.connections.storage import LocalStorage, Storage

__all__ = ["TableLocation", "refuse_names"]

_FILE = "file://"
_S3 = re.compile(r"s3a?://(?P<place>[a-z0-9][a-z0-9.-]+(/[^/@:?#]+)+)/?")


@dataclass(frozen=True)
class TableLocation:
    """The directory of a table."""

    uri: str
    """An absolute path, or ``s3://bucket/path``."""
    options: ObjectOptions | None = None
    """How to reach the object store; None for a path."""

    @classmethod
    def of(cls, table: object, options: object = None) -> "TableLocation":
        """Raises ConfigurationError for what is not a directory that can be reached."""
        if isinstance(table, Path):
            table = str(table)
        if not isinstance(table, str) or not table:
            raise ConfigurationError(f"{table!r} is not the path of a table")
        if table.startswith(("s3://", "s3a://")):
            match = _S3.fullmatch(table)
            if match is None:
                raise ConfigurationError("a table in S3 is named as s3://bucket/path, without credentials")
            return cls(f"s3://{match['place']}", ObjectOptions.of(options or {}))
        path = table.removeprefix(_FILE)
        if "://" in path:
            raise ConfigurationError(f"{table!r}: tables in S3 and in directories are supported, no others yet")
        if options:
            raise ConfigurationError("a table in a directory needs no options of a storage")
        return cls(str(Path(path).absolute()))

    def storage(self) -> Storage:
        """Raises ConfigurationError where the client of an object store is not installed."""
        if self.options is None:
            return LocalStorage(self.uri)
        try:
            from onceward.connections.object_storage import ObjectStorage
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"The table {self.uri} needs {error.name}, which is not installed here. Nothing was read or written. "
                f"Install it on the driver, on every executor and beside the coordinator: pip install {error.name}"
            ) from error
        return ObjectStorage(self.uri, self.options)

    def without_secrets(self, text: str) -> str:
        """Return what a library has said of the table, without what it repeats of secrets."""
        return text if self.options is None else self.options.without_secrets(text)


def refuse_names(kind: str, names: Sequence[str]) -> None:
    """Raise ConfigurationError if a command names a table in a system of ``kind``, which is one table."""
    if names:
        raise ConfigurationError(
            f"{names[0]} names a table, and a table of kind {kind} in the systems file is one itself. Nothing was "
            "read. Give its name there alone."
        )
