"""Where the database is: a connection string, or a reference to one. Loads without a client."""

import re
from collections.abc import Mapping
from typing import Any

from onceward.common.errors import ConfigurationError
from onceward.connections.secrets import is_reference, reference_problem, resolve

__all__ = ["checked", "dsn_of", "resolved"]

_SECRET = re.compile(r"\bpassword\s*=|sslpassword\s*=|^[a-z]+://[^/@]*:[^/@]*@")

_READERS = "the driver, for every executor and for a coordinator that settles for this job"


def checked(dsn: object) -> str:
    """Return ``dsn`` if it can be kept and shown. Raises ConfigurationError without repeating it."""
    if not isinstance(dsn, str) or not dsn:
        raise ConfigurationError('dsn: give a reference such as "env:DSN", or a connection string without a password')
    if is_reference(dsn):
        if problem := reference_problem(dsn):
            raise ConfigurationError(f"dsn: {problem}")
    elif _SECRET.search(dsn):
        raise ConfigurationError(
            "dsn: it holds a password, which documents and logs would show. Put the whole connection string into an "
            'environment variable or a file, and give "env:NAME" or "file:/absolute/path"'
        )
    return dsn


def resolved(dsn: str) -> str:
    """Return the connection string. Raises ConfigurationError if it is a reference that leads nowhere."""
    return resolve(dsn, key="dsn", readers=_READERS) if is_reference(dsn) else dsn


def dsn_of(name: str, table: Mapping[str, Any]) -> str:
    """Return the DSN in the table of a systems file. Raises ConfigurationError."""
    if unknown := table.keys() - {"dsn"}:
        raise ConfigurationError(f"unknown: {', '.join(sorted(unknown))}; known is dsn")
    return checked(table.get("dsn"))
