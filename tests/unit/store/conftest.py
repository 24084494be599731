"""A store in its own directory."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceward.coordinator.store.store import Store
from tests.support.stored_jobs import MEMORY


@pytest.fixture
def file() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        yield Path(directory) / "state" / "store.db"


@pytest.fixture
def store(file: Path) -> Iterator[Store]:
    store = Store.open(f"sqlite:///{file}")
    yield store
    store.close()
