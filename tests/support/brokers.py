"""What brokers of the version under test have (ONCEWARD_KAFKA)."""

import pytest

from onceward.dev.kafka.versions import broker_version, highest_transaction_version

__all__ = ["needs_transaction_version"]


def needs_transaction_version(version: int) -> int:
    """Return a ``transaction.version``; skip the test if the brokers do not have it."""
    if version > highest_transaction_version():
        pytest.skip(f"Kafka {broker_version()} has no transaction.version {version}")
    return version
