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
from onceward.sinks.lake.location import TableLocation

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

__all__ = ["DELEGATION", "CatalogTable", "table_of"]

_READERS = (
    "the driver and for a coordinator that settles for this job; for every executor, too, if it is of the storage"
)
_SECRET_KEY = re.compile(r"password|secret|token|credential|account-key|connection-string|header\.authorization", re.I)
_SECRET_VALUE = re.compile(r"^[a-z0-9+]+://[^/@]*:[^/@]+@|\bpassword\s*=", re.I)
_SWITCHES = frozenset({"true", "false"})
DELEGATION: Final = "x-iceberg-access-delegation"
"""The header that asks a REST catalogue for temporary credentials. The library sends it by default."""
_PATHS: Final = frozenset({"warehouse"})
"""Settings whose ``file:`` begins a path."""

_FILE = re.compile(r"^file:/+")
_S3: Final = {
    f"{prefix}.{name}": option  # those of s3 are the last, and count
    for prefix in ("client", "s3")
    for name, option in {
        "access-key-id": "aws_access_key_id",
        "secret-access-key": "aws_secret_access_key",
        "session-token": "aws_session_token",
        "region": "aws_region",
        "endpoint": "aws_endpoint_url",
        "force-virtual-addressing": "aws_virtual_hosted_style_request",
    }.items()
}

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

    @property
    def catalog_address(self) -> str:
        """Of the catalogue, by these settings."""
        settings = dict(self.settings)
        return " ".join(filter(None, (settings.get(key, "").rstrip("/") for key in ("uri", "warehouse", "prefix"))))

    def catalog(self) -> "Catalog":
        """Return the catalogue, which this process keeps. Raises what the library raises if it cannot be reached, and
        ConfigurationError if a reference leads nowhere."""
        mine = _opened.mine()
        if self not in mine:
            mine[self] = _open(dict(self.resolved()))
        return mine[self]

    def forget(self) -> None:
        """Open the catalogue again for the next call: after an error, a connection or a secret may be an old one."""
        _opened.mine().pop(self, None)

    def place(self, uri: str) -> TableLocation:
        """Return the table's directory by the catalogue's word, reached with the settings ``s3.*`` and ``client.*``.
        Raises ConfigurationError for what cannot be reached."""
        if not uri.startswith(("s3://", "s3a://")):
            return TableLocation.of(_FILE.sub("/", uri))
        settings = dict(self.settings)
        options = {ours: settings[name] for name, ours in _S3.items() if name in settings}
        if options.get("aws_endpoint_url", "").startswith("http://"):
            options["aws_allow_http"] = "true"
        return TableLocation.of(uri, options)

    def without_secrets(self, text: str) -> str:
        """Return what a library has said, without what it repeats of secrets."""
        plain = dict(self.settings)
        for key, value in self.resolved():
            text = text if value == plain[key] else text.replace(value, "***")
        return text

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


def _open(settings: dict[str, str]) -> "Catalog":
    from pyiceberg.catalog import load_catalog

    from onceward.sinks.iceberg.rest import BoundedRestCatalog

    name = settings.pop("name", "default")
    kind = settings.get("type") or ("rest" if settings.get("uri", "").startswith(("http://", "https://")) else "")
    return BoundedRestCatalog(name, **settings) if kind == "rest" else load_catalog(name, **settings)


def _name_problems(table: object) -> Iterator[str]:
    if not isinstance(table, str) or len(parts := table.split(".")) < 2 or not all(parts):
        yield f"table: {table!r} is no table with its namespace, such as shop.orders"


def _catalog_problems(catalog: object) -> Iterator[str]:
    if not isinstance(catalog, Mapping) or not catalog:
        yield 'catalog: give the settings of pyiceberg, such as {"type": "rest", "uri": "http://catalog:8181"}'
        return
    for key, value in catalog.items():
        if str(key).lower() == f"header.{DELEGATION}" and str(value).lower() != "none":
            yield (
                f"catalog {key}: asks the catalogue for temporary credentials, which this sink does not use: the tasks"
                " that write data files do not reach the catalogue. Leave it out, and give credentials of the storage"
                " as references, such as s3.access-key-id and s3.secret-access-key"
            )
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
