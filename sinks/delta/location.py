"""Where a Delta table is, and how to reach it.

Imported on executors: standard library only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onceward.common.errors import ConfigurationError
from onceward.connections.storage import LocalStorage, Storage

__all__ = ["TableLocation", "location_of"]

_FILE = "file://"


@dataclass(frozen=True)
class TableLocation:
    """The directory of a table."""

    uri: str
    """An absolute path."""

    @classmethod
    def of(cls, table: object) -> "TableLocation":
        """Raises ConfigurationError for what is not a directory that can be reached."""
        if isinstance(table, Path):
            table = str(table)
        if not isinstance(table, str) or not table:
            raise ConfigurationError(f"{table!r} is not the path of a table")
        path = table.removeprefix(_FILE)
        if "://" in path:
            raise ConfigurationError(f"{table!r}: tables in local or mounted directories are supported, no others yet")
        return cls(str(Path(path).absolute()))

    def storage(self) -> Storage:
        return LocalStorage(self.uri)


def location_of(name: str, table: Mapping[str, Any]) -> TableLocation:
    """Return the location that a table of a systems file describes. Raises ConfigurationError."""
    unknown = table.keys() - {"table"}
    if unknown:
        raise ConfigurationError(f"unknown: {', '.join(sorted(unknown))}; known is table")
    return TableLocation.of(table.get("table", ""))
