"""Which table, and how to reach its catalogue. Loads without a client; the library is imported where it is used.

Settings of a catalogue are those of pyiceberg, and ``name``. A secret among them is a reference, which each process
resolves when it opens the catalogue.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from onceward.common.errors import ConfigurationError
from onceward.connections.per_process import PerProcess
from onceward.connections.secrets import is_reference, reference_problem, resolve
from onceward.connections.storage import LocalStorage, Storage

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

__all__ = ["CatalogTable", "storage_of", "table_of"]

_READERS = "the driver and for a coordinator that settles for this job"
_SECRET_KEY = re.compile(r"password|secret|token|credential|account-key|connection-string|header\.authorization", re.I)
_SECRET_VALUE = re.compile(r"^[a-z0-9+]+://[^/@]*:[^/@]+@|\bpassword\s*=", re.I)
_SWITCHES = frozenset({"true", "false"})
_PATHS: Final = frozenset({"warehouse"})
"""Settings whose ``file:`` begins a path."""

_opened: "PerProcess[CatalogTable, Catalog]" = PerProcess()


@dataclass(frozen=True)
class CatalogTable:
    """A table by its name in a catalogue."""

    name: str
    """With its namespace, such as ``shop.orders``."""
    settings: tuple[tuple[str, str], ...]
    """Of the catalogue. Secrets are references."""

    @classmethod
    def of(cls, table: object, catalog: object) -> "CatalogTable":
        """Raises ConfigurationError that lists every problem, without repeating a secret."""
        problems = [*_name_problems(table), *_catalog_problems(catalog)]
        if problems:
            raise ConfigurationError("\n  - ".join(problems))
        settings: Mapping[str, object] = dict(catalog)  # type: ignore[call-overload]
        return cls(str(table), tuple(sorted((key, str(value)) for key, value in settings.items())))

    def catalog(self) -> "Catalog":
        """Return the catalogue, which this process keeps. Raises what the library raises if it cannot be reached, and
        ConfigurationError if a reference leads nowhere."""
        from pyiceberg.catalog import load_catalog

        mine = _opened.mine()
        if self not in mine:
            found = dict(self.resolved())
            mine[self] = load_catalog(found.pop("name", "default"), **found)
        return mine[self]

    def forget(self) -> None:
        """Open the catalogue again for the next call: after an error, a connection or a secret may be an old one."""
        _opened.mine().pop(self, None)

    def resolved(self) -> Iterator[tuple[str, str]]:
        """Yield the settings with their secrets. Raises ConfigurationError."""
        for key, value in self.settings:
            is_one = is_reference(value) and key not in _PATHS
            yield key, resolve(value, key=f"catalog {key}", readers=_READERS) if is_one else value


def table_of(name: str, table: Mapping[str, Any]) -> CatalogTable:
    """Return the table that a table of a systems file describes. Raises ConfigurationError."""
    unknown = table.keys() - {"table", "catalog"}
    if unknown:
        raise ConfigurationError(f"unknown: {', '.join(sorted(unknown))}; known are table, catalog")
    return CatalogTable.of(table.get("table", ""), table.get("catalog", {}))


def storage_of(uri: str) -> Storage:
    """Return the directory of a table. Raises ConfigurationError for what cannot be reached."""
    path = uri.removeprefix("file://").removeprefix("file:")
    if "://" in path or not path.startswith("/"):
        raise ConfigurationError(f"{uri}: tables in local or mounted directories are supported, no others yet")
    return LocalStorage(path)


def _name_problems(table: object) -> Iterator[str]:
    if not isinstance(table, str) or len(parts := table.split(".")) < 2 or not all(parts):
        yield f"table: {table!r} is no table with its namespace, such as shop.orders"


def _catalog_problems(catalog: object) -> Iterator[str]:
    if not isinstance(catalog, Mapping) or not catalog:
        yield 'catalog: give the settings of pyiceberg, such as {"type": "rest", "uri": "http://catalog:8181"}'
        return
    for key, value in catalog.items():
        if not isinstance(key, str) or not isinstance(value, str | int | bool) or not str(value):
            yield f"catalog {key}: give text"
        elif key not in _PATHS and is_reference(str(value)):
            if problem := reference_problem(str(value)):
                yield f"catalog {key}: {problem}"
        elif (_SECRET_KEY.search(key) and str(value).lower() not in _SWITCHES and not _is_address(str(value))) or (
            _SECRET_VALUE.search(str(value))
        ):
            yield (
                f"catalog {key}: is or holds a secret, which the jobs of Spark and logs would show. Put the whole value"
                ' into an environment variable or a file, and give "env:NAME" or "file:/absolute/path"'
            )


def _is_address(value: str) -> bool:
    return value.startswith(("http://", "https://")) and not _SECRET_VALUE.search(value)
