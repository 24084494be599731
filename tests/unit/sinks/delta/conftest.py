"""An object store that the tests of a worker share, each with a table of its own."""

import secrets
from collections.abc import Iterator

import pytest

from tests.support.object_store import ObjectStore
from tests.unit.sinks.delta.tables import ObjectTable


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    store = ObjectStore()
    yield store
    store.stop()


@pytest.fixture
def object_table(object_store: ObjectStore) -> ObjectTable:
    return ObjectTable(object_store, f"tables/{secrets.token_hex(4)}")
