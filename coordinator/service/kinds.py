"""The kinds of systems that are installed beside this process, and their parts."""

import pkgutil
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from onceward.common.errors import ConfigurationError
from onceward.protocol.kinds import Kind

__all__ = ["SYSTEMS", "installed_kinds", "part"]

SYSTEMS = "onceward.systems"


def installed_kinds(done: str) -> Mapping[str, Kind]:
    """Return the kinds by name. Raises ConfigurationError for one that cannot be loaded; ``done`` completes its message
    "Nothing was ..."."""
    kinds: dict[str, Kind] = {}
    for point in entry_points(group=SYSTEMS):
        try:
            kinds[point.name] = point.load()
        except (ImportError, AttributeError) as error:
            raise _unusable(f"The kind of system {point.name} ({point.value})", error, done) from error
    return kinds


def part(kind: str, where: str, done: str) -> Any:
    """Load a part of a kind, ``module:attribute``. Raises ConfigurationError."""
    try:
        return pkgutil.resolve_name(where)
    except (ImportError, AttributeError, ValueError) as error:
        raise _unusable(f"A part of the kind of system {kind} ({where})", error, done) from error


def _unusable(what: str, error: Exception, done: str) -> ConfigurationError:
    return ConfigurationError(
        f"{what} cannot be loaded: {error}. Nothing was {done}. Install what it needs, for Kafka with: "
        "pip install 'onceward[kafka]'."
    )
