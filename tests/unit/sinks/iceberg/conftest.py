"""REST catalogues: a small one for each test, and Nessie, which the tests of a worker share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.nessie import LocalNessie
from tests.support.object_store import ObjectStore
from tests.support.rest_catalogue import RestCatalogue


@pytest.fixture(scope="session")
def nessie(object_store: ObjectStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNessie]:
    with LocalNessie(tmp_path_factory.mktemp("nessie"), object_store) as running:
        yield running


@pytest.fixture
def small(tmp_path: Path) -> Iterator[RestCatalogue]:
    with RestCatalogue(tmp_path) as running:
        yield running
