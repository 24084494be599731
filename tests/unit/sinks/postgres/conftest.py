"""A database for each test."""

from collections.abc import Iterator

import pytest

from onceward.dev.postgres.server import LocalPostgres
from tests.conftest import unique_name
from tests.support.database import Database, database_on


@pytest.fixture
def database(postgres: LocalPostgres, request: pytest.FixtureRequest) -> Iterator[Database]:
    with database_on(postgres, unique_name(request)) as made:
        yield made
