"""An object store that the tests of a worker share."""

from collections.abc import Iterator

import pytest

from tests.support.object_store import ObjectStore


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    store = ObjectStore()
    yield store
    store.stop()
