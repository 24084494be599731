"""The broker's jars."""

from functools import cache
from pathlib import Path

from onceward.common.jvm.archives import fingerprint
from onceward.dev.jars import JarList, Progress
from onceward.dev.kafka.versions import broker_version, jars_of

__all__ = ["broker_jars", "class_archive", "jar_list"]


def jar_list() -> JarList:
    """The jars of a Kafka broker and what it runs on. Raises `LocalKafkaError` for a version that cannot be fetched."""
    return _jar_list(broker_version())


@cache
def _jar_list(version: str) -> JarList:
    return JarList("the broker's", "kafka", jars_of(version))


def broker_jars(progress: Progress | None = None) -> Path:
    """Return the directory with exactly the broker's jars; fetches them first if necessary.

    Raises `LocalServerError` if they cannot be fetched or are not the published ones.
    """
    return jar_list().directory(progress)


def class_archive(jars: Path) -> Path:
    """Return where the archive of the broker's classes is, for these jars and this Java, whether it was written or
    not."""
    return jars.parent / f"{jars.name}-{fingerprint(jars.glob('*.jar'))}.jsa"
