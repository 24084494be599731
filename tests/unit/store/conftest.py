"""A store in a directory of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.store.store import Store


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "store.db"


@pytest.fixture
def store(file: Path) -> Iterator[Store]:
    store = Store.open(f"sqlite:///{file}")
    yield store
    store.close()
