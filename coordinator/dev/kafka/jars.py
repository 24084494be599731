"""The broker's jars."""

from functools import cache
from importlib.resources import files
from pathlib import Path

from onceward.coordinator.dev.jars import JarList, Progress

__all__ = ["broker_jars", "jar_list"]


@cache
def jar_list() -> JarList:
    """The jars of a Kafka broker and what it runs on."""
    listed = files("onceward.coordinator.dev.kafka").joinpath("jars.txt").read_text(encoding="ascii")
    return JarList("the broker's", "kafka", listed)


def broker_jars(progress: Progress | None = None) -> Path:
    """Return the directory with exactly the broker's jars; fetches them first if necessary.

    Raises `LocalServerError` if they cannot be fetched or are not the published ones.
    """
    return jar_list().directory(progress)
