"""A real broker for the modules that need one; each test has its own topics and job name."""

from collections.abc import Iterator

import pytest

from onceward.coordinator.dev.kafka import LocalKafka
from tests.conftest import unique_name
from tests.support.topics import Topics


@pytest.fixture(scope="package")
def kafka() -> Iterator[LocalKafka]:
    """One broker for all tests of this package; it looks for timed-out transactions every 200 ms."""
    with LocalKafka(transaction_timeout_scan_ms=200) as local:
        yield local


@pytest.fixture
def topics(kafka: LocalKafka, request: pytest.FixtureRequest) -> Topics:
    return Topics(kafka.bootstrap_servers, unique_name(request))
