"""A server's jars are the published ones or none, and are fetched once. A script stands in for Ivy."""

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceward.dev.errors import LocalKafkaError, LocalPostgresError, LocalServerError
from onceward.dev.jars import JarList
from onceward.dev.java import find_java
from onceward.dev.kafka import LocalKafka
from onceward.dev.kafka import versions as kafka
from onceward.dev.kafka.jars import jar_list
from onceward.dev.postgres import binaries as postgres
from onceward.dev.postgres.binaries import VERSION_VARIABLE

CONTENT = b"published\n"
LISTED = "# two jars\n" + "".join(
    f"{hashlib.sha256(CONTENT).hexdigest()} {len(CONTENT)} org.example:{name}:1\n" for name in ("one", "two")
)
IVY = """#!/bin/sh
[ "$1" = -version ] && {{ echo 'openjdk version "17.0.1"' >&2; exit 0; }}
echo x >>'{calls}'
to=$(dirname "$8")
mkdir -p "$to"
for jar in one two; do
    echo "downloading $jar"
    printf '%s\\n' "{content}" >"$to/$jar-1.jar"
    printf '\\t[SUCCESSFUL ] org.example#%s;1!%s.jar (3ms)\\n' $jar $jar
done
{last}
"""


class Registry:
    """The answers to a fetch, and the number of fetches."""

    def __init__(self, directory: Path) -> None:
        self.calls = directory / "calls"
        self.java = directory / "jdk" / "bin" / "java"
        self.java.parent.mkdir(parents=True)
        self.serve()

    def serve(self, content: str = "published", last: str = "") -> None:
        self.java.write_text(IVY.format(calls=self.calls, content=content, last=last))
        self.java.chmod(0o755)

    @property
    def asked(self) -> int:
        return self.calls.read_text().count("x") if self.calls.exists() else 0


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ONCEWARD_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "server"


@pytest.fixture
def registry(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    served = Registry(tmp_path)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "jdk"))
    find_java.cache_clear()
    yield served
    find_java.cache_clear()


def jars() -> JarList:
    """The list as a new process knows it."""
    return JarList("the server's", "server", LISTED)


def entries(cache: Path) -> list[str]:
    return sorted(path.name for path in cache.iterdir() if path.name != "fetch.lock")


@pytest.mark.parametrize(
    ("version", "count", "some"),
    [
        ("", 46, {"kafka_2.13-4.3.1.jar", "log4j-slf4j-impl-2.25.4.jar"}),
        ("4.0", 44, {"kafka_2.13-4.0.2.jar", "log4j-slf4j-impl-2.25.4.jar"}),
        ("3.9", 48, {"kafka_2.13-3.9.2.jar", "slf4j-reload4j-1.7.36.jar"}),
    ],
)
def test_each_list_names_every_jar_of_its_broker_once_with_its_checksum(
    version: str, count: int, some: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(kafka.VERSION_VARIABLE, version)
    listed = jar_list().jars
    names = [jar.file_name for jar in listed]
    assert len(set(names)) == len(names) == count
    assert some <= set(names)
    assert all(len(bytes.fromhex(jar.sha256)) == 32 and jar.size > 0 for jar in listed)


def test_another_kafka_has_its_own_transaction_versions_and_an_unknown_one_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(kafka.VERSION_VARIABLE, raising=False)
    assert LocalKafka().transaction_version == 2
    default = jar_list().version
    monkeypatch.setenv(kafka.VERSION_VARIABLE, "3.9")
    assert LocalKafka().transaction_version == 0
    assert jar_list().version != default, "they share no directory"
    with pytest.raises(LocalKafkaError, match=r"Kafka 3\.9 is 0 to 0, not 2"):
        LocalKafka(transaction_version=2)
    monkeypatch.setenv(kafka.VERSION_VARIABLE, "3.8")
    with pytest.raises(LocalKafkaError, match=r"3\.9, 4\.0, 4\.3 can be fetched"):
        LocalKafka()


def test_jars_are_fetched_once_with_progress_and_then_used_without_asking(registry: Registry, cache: Path) -> None:
    reported: list[tuple[int, int, int]] = []
    directory = jars().directory(lambda *progress: reported.append(progress))
    assert reported == [(1, 2, len(CONTENT)), (2, 2, 2 * len(CONTENT))]
    assert {path.name: path.read_bytes() for path in directory.iterdir()} == {
        "one-1.jar": CONTENT,
        "two-1.jar": CONTENT,
    }
    assert jars().directory() == directory
    assert registry.asked == 1
    assert entries(cache) == [directory.name]


def test_a_jar_that_is_not_the_published_one_is_refused_and_nothing_is_kept(registry: Registry, cache: Path) -> None:
    registry.serve(content="tampered")
    with pytest.raises(LocalServerError, match=r"one-1\.jar is not the published file"):
        jars().directory()
    assert entries(cache) == []
    registry.serve()
    assert jars().directory().is_dir()


def test_a_jar_that_was_damaged_in_the_cache_is_fetched_again(registry: Registry) -> None:
    jar = jars().directory() / "two-1.jar"
    jar.write_bytes(b"damaged!!\n")
    jars().directory()
    assert jar.read_bytes() == CONTENT
    assert registry.asked == 2


def test_a_failed_fetch_reports_why_in_one_line_and_leaves_nothing(registry: Registry, cache: Path) -> None:
    registry.serve(last="echo '  WARN: org.example#two;1: not found'; exit 1")
    with pytest.raises(LocalServerError, match=r"could not be fetched .*two;1: not found") as caught:
        jars().directory()
    assert "\n" not in str(caught.value)
    assert entries(cache) == []


def test_of_two_concurrent_fetches_one_downloads_and_the_other_waits(registry: Registry) -> None:
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(jars().directory())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len(set(found)) == 1
    assert registry.asked == 1


def test_an_unwritable_cache_is_reported_with_the_variable_that_moves_it(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ONCEWARD_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(LocalServerError, match="ONCEWARD_CACHE_DIR"):
        jars().directory()
    assert registry.asked == 0


def test_another_postgres_can_be_chosen_and_an_unknown_one_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VERSION_VARIABLE, raising=False)
    default = postgres.jar_list()
    monkeypatch.setenv(VERSION_VARIABLE, "14")
    other = postgres.jar_list()
    assert [jar.version.partition(".")[0] for jar in (*default.jars, *other.jars)] == ["17", "14"]
    assert default.version != other.version, "they share no directory"
    monkeypatch.setenv(VERSION_VARIABLE, "9")
    with pytest.raises(LocalPostgresError, match="17, 18, 16, 15, 14"):
        postgres.jar_list()
