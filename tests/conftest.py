"""Shared fixtures: names that no two tests share, and a real broker."""

import gc
import itertools
import os
import re
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from onceward.dev.postgres.server import LocalPostgres
    from tests.support.collector import Collector
    from tests.support.places import Place
    from tests.support.processes import Starter
    from tests.support.shared_kafka import SharedKafka
    from tests.support.topics import Topics

# A test that fails because the machine was slow says nothing about the product.
settings.register_profile("onceward", deadline=None)
# For `make check`, by --hypothesis-profile; `make test` runs all examples.
settings.register_profile("quick", deadline=None, max_examples=25)
settings.load_profile("onceward")

# The JVMs of tests live for seconds: in that time, compiling for a long run costs more than it saves.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

# Each worker collects all tests, and none of what it collects is garbage: looking for some takes a third of that time.
gc.disable()

# A store refuses a directory in which others may write, and some systems let a group write by default.
os.umask(0o022)

_RUN = secrets.token_hex(2)
_COUNT = itertools.count(1)


def examples(count: int) -> int:
    """The number of examples of a test that needs other than 100, scaled to the active profile."""
    assert isinstance(settings.default, settings)
    return max(1, count * settings.default.max_examples // 100)


def unique_name(request: pytest.FixtureRequest) -> str:
    """A name of at most 40 characters that fits the pattern of job names and says which test it belongs to."""
    test = re.sub(r"[^a-z0-9]+", "-", request.node.name.lower().removeprefix("test_")).strip("-")[:28].rstrip("-")
    return f"{test or 'test'}-{_RUN}{next(_COUNT)}"


@pytest.fixture
def job(request: pytest.FixtureRequest) -> str:
    """A job name that is unique on every broker and in every store."""
    return unique_name(request)


@pytest.fixture(scope="session")
def kafka(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> "SharedKafka":
    """One broker for the whole run, also of parallel workers (`shared_kafka`)."""
    from tests.support.shared_kafka import shared_kafka

    own = tmp_path_factory.getbasetemp()
    shared = ExitStack()
    # not at the end of the last test, which would have to wait for other workers' tests within its own time limit
    request.config.add_cleanup(shared.close)
    return shared.enter_context(shared_kafka(own.parent if hasattr(request.config, "workerinput") else own))


@pytest.fixture(scope="session")
def postgres() -> Iterator["LocalPostgres"]:
    """One PostgreSQL for the whole session."""
    from onceward.dev.jars import fetch_progress
    from onceward.dev.postgres.binaries import is_offered
    from onceward.dev.postgres.server import LocalPostgres

    if not is_offered():
        pytest.skip("there is no PostgreSQL to fetch for this machine")
    with LocalPostgres(progress=fetch_progress("PostgreSQL's")) as local:
        yield local


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest) -> Iterator["Place"]:
    """Where the test's store is: the test runs on each database."""
    from tests.support.places import postgres_place, sqlite_place
    from tests.support.stored_jobs import MEMORY

    if request.param == "postgresql":
        yield postgres_place(request.getfixturevalue("postgres"))
        return
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        yield sqlite_place(Path(directory))


@pytest.fixture
def topics(kafka: "SharedKafka", request: pytest.FixtureRequest) -> "Topics":
    """Topics of this test on the session's broker."""
    from tests.support.topics import Topics

    return Topics(kafka.bootstrap_servers, unique_name(request))


@pytest.fixture
def job_processes(tmp_path: Path, job: str, topics: "Topics") -> "Starter":
    """Makes the processes of this test's job: ``job_processes(source, sink, **spec)``."""
    from tests.support.processes import JobProcesses

    return partial(JobProcesses, tmp_path, job, topics.servers)


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator["Collector"]:
    """A collector of traces, to which this process exports."""
    from tests.support.collector import collecting

    with collecting() as collector:
        for name, value in collector.variables.items():
            monkeypatch.setenv(name, value)
        yield collector


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave tests on a PostgreSQL of their own to `make test`. Start slow files first, so that no core runs one of them
    alone at the end, and before them tests that read all files, so that one worker reads them."""
    for item in items:
        if isinstance(item, pytest.Function) and "postgres" in item.fixturenames:
            item.add_marker(pytest.mark.slow)
    items.sort(key=lambda item: (not item.get_closest_marker("whole_tree"), not item.get_closest_marker("long")))


def pytest_collection_finish() -> None:
    """Collect garbage again from here on, but leave out what has been collected and imported."""
    gc.freeze()
    gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Show what tests measured and do not judge. `--junitxml` writes it down too."""
    passed: list[pytest.TestReport] = terminalreporter.getreports("passed")
    found = [(one.nodeid.rpartition("::")[2], what, value) for one in passed for what, value in one.user_properties]
    if found:
        terminalreporter.section("measured")
    for test, what, value in found:
        terminalreporter.line(f"{what}: {value} ({test})")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--regenerate", action="store_true", help="tests/scenarios: write what the core says now")
