"""The broker's jars."""

from functools import cache
from importlib.resources import files
from pathlib import Path

from onceward.coordinator.dev.jars import JarList, Progress
from onceward.coordinator.jvm.archives import fingerprint

__all__ = ["broker_jars", "class_archive", "jar_list"]


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


def class_archive(jars: Path) -> Path:
    """Return where the archive of the broker's classes is, for these jars and this Java, whether it was written or
    not."""
    return jars.parent / f"{jars.name}-{fingerprint(jars.glob('*.jar'))}.jsa"
