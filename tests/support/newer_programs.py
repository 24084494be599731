"""This program as one with later migrations."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MappingProxyType

import pytest
from sqlalchemy import Connection

from onceward.coordinator.store import identity, migrations
from onceward.coordinator.store.schema import SCHEMA_VERSION

__all__ = ["newer"]


@contextmanager
def newer(*steps: Callable[[Connection], object], first: int = SCHEMA_VERSION) -> Iterator[None]:
    """Make this program one that is some versions newer."""
    with pytest.MonkeyPatch.context() as patch:
        known = {first + number: step for number, step in enumerate(steps)}
        patch.setattr(migrations, "MIGRATIONS", MappingProxyType(known))
        for module in (migrations, identity):
            patch.setattr(module, "SCHEMA_VERSION", first + len(steps))
        yield
