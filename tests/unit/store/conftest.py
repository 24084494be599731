"""A store on each database, in a place of its own."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceward.coordinator.store.store import Store
from tests.support.places import Place
from tests.support.stored_jobs import MEMORY


@pytest.fixture
def store(place: Place) -> Iterator[Store]:
    store = place.open()
    yield store
    store.close()


@pytest.fixture
def file() -> Iterator[Path]:
    """Of a store that is a file."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        yield Path(directory) / "state" / "store.db"


@pytest.fixture
def sqlite(file: Path) -> Iterator[Store]:
    """The store in ``file``."""
    store = Store.open(f"sqlite:///{file}")
    yield store
    store.close()
