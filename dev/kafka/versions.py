"""The versions of Kafka that can run here, each with a list of its jars."""

import os
from importlib.resources import files

from onceward.dev.errors import LocalKafkaError

__all__ = ["DEFAULT_VERSION", "VERSION_VARIABLE", "broker_version", "highest_transaction_version", "jars_of"]

VERSION_VARIABLE = "ONCEWARD_KAFKA"
"""Environment variable with the version to run, for example ``3.9``."""

DEFAULT_VERSION = "4.3"
_LISTS = files("onceward.dev.kafka")


def broker_version() -> str:
    """Return the version of the brokers that start now, as ``major.minor``. Raises `LocalKafkaError` for one that
    cannot be fetched."""
    version = os.environ.get(VERSION_VARIABLE) or DEFAULT_VERSION
    names = (path.name for path in _LISTS.iterdir())
    known = sorted(name[len("jars-") : -len(".txt")] for name in names if name.startswith("jars-"))
    if version not in known:
        raise LocalKafkaError(
            f"{VERSION_VARIABLE}={version}: of Kafka, the versions {', '.join(known)} can be fetched. "
            "Nothing was started."
        )
    return version


def jars_of(version: str) -> str:
    """Return the list of a version's jars."""
    return _LISTS.joinpath(f"jars-{version}.txt").read_text(encoding="ascii")


def highest_transaction_version() -> int:
    """Return the highest ``transaction.version`` of the brokers that start now. Kafka 3.9 knows the others only as
    unfinished ones."""
    return 0 if broker_version().startswith("3.") else 2
