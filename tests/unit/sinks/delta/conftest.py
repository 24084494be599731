"""A table in an object store for each test."""

import secrets

import pytest

from tests.support.object_store import ObjectStore
from tests.unit.sinks.delta.tables import ObjectTable


@pytest.fixture
def object_table(object_store: ObjectStore) -> ObjectTable:
    return ObjectTable(object_store, f"tables/{secrets.token_hex(4)}")
