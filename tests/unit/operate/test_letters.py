"""What a letter says of itself, how letters are grouped, and what ``onceward letters`` refuses before it reads one."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from onceward.client.session import CoordinatorClient, connect
from onceward.common.errors import ExitCode
from onceward.connectors.letters import DEAD_LETTERS, Letter
from onceward.coordinator.service.embedded import EmbeddedCoordinator
from onceward.operate.dead_letters import Found
from onceward.operate.letters import reasons_of
from onceward.operate.verify.history import Lane
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import JobName
from tests.support.commands import onceward
from tests.support.scripted import SINK, SOURCE

AT = datetime(2026, 1, 2, tzinfo=UTC)


def headers(**said: str) -> list[tuple[str, bytes | None]]:
    return [("trace", b"x"), *((f"onceward.error.{name}", text.encode()) for name, text in said.items())]


def test_a_letter_says_what_it_was_and_why() -> None:
    said = headers(
        job="orders",
        topic="in",
        partition="1",
        offset="17",
        timestamp="5",
        stage="transform",
        message="no",
        attempt="2",
    )
    assert Letter.of([*said, ("onceward.error.class", b"ValueError")]) == Letter(
        job="orders",
        kind="ValueError",
        message="no",
        stage="transform",
        topic="in",
        partition=1,
        offset=17,
        timestamp=5,
        attempt=2,
    )


@pytest.mark.parametrize("said", [[], [("a", b"b"), ("c", None)], headers(job="orders"), headers(message="no")])
def test_other_records_are_no_letters(said: list[tuple[str, bytes | None]]) -> None:
    assert Letter.of(said) is None


@pytest.mark.parametrize("number", ["", "-1", "x", "1.5", "²", "9" * 30])
def test_a_number_that_is_none_is_unknown(number: str) -> None:
    letter = Letter.of(
        [*headers(job="orders", topic="in", offset=number, attempt=number), ("onceward.error.class", b"E")]
    )
    assert letter is not None
    assert (letter.offset, letter.attempt, letter.place) == (None, 1, "in")


def found(kind: str, minute: int, *, output: str = "", attempt: int = 1) -> Found:
    letter = Letter(
        job="orders",
        kind=kind,
        message=f"at {minute}",
        topic="in",
        partition=0,
        offset=minute,
        output=output,
        attempt=attempt,
    )
    return Found(letter=letter, lane=Lane("dead", 0), offset=minute, at=AT + timedelta(minutes=minute))


def test_letters_are_grouped_by_reason_with_the_newest_ones() -> None:
    minutes = [5, 1, 9, 3, 7]
    first, second, third = reasons_of(
        [
            found("KeyError", 2, output="table"),
            *(found("ValueError", minute, attempt=minute) for minute in minutes),
            found("KeyError", 4),
            found("KeyError", 6),
        ]
    )
    assert (first.kind, first.letters, first.attempts, first.message) == ("ValueError", 5, 9, "at 9")
    assert first.records == ["in-0 offset 9", "in-0 offset 7", "in-0 offset 5"]
    assert (first.oldest, first.newest) == (AT + timedelta(minutes=1), AT + timedelta(minutes=9))
    assert [(one.kind, one.output, one.letters) for one in (second, third)] == [
        ("KeyError", "", 2),
        ("KeyError", "table", 1),
    ]


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[tuple[CoordinatorClient, str]]:
    with EmbeddedCoordinator(tmp_path) as coordinator, connect(coordinator.address) as client:
        yield client, coordinator.address


BROKERS = ("--servers", "127.0.0.1:1")


@pytest.mark.parametrize(
    ("place", "words", "says"),
    [
        (None, BROKERS, "Job orders has no dead letters"),
        ("PostgreSQL table dead", BROKERS, "to PostgreSQL table dead"),
        ("", BROKERS, "a place that its driver does not say"),
        ("Kafka topic dead", (), "Name the brokers"),
        ("Kafka topic dead", (*BROKERS, "--systems", "x.toml"), "Name the brokers"),
        ("Kafka topic dead", (*BROKERS, "--topic", "other:dead"), "no Kafka cluster other"),
    ],
)
def test_what_cannot_be_listed_is_refused(
    jobs: tuple[CoordinatorClient, str], place: str | None, words: tuple[str, ...], says: str
) -> None:
    client, address = jobs
    letters = () if place is None else (replace(SINK, name=DEAD_LETTERS, place=place),)
    client.open_job(
        JobName("orders"), (SOURCE, SINK, *letters), CheckpointSettings(interval=None), None, driver="d", wait="0s"
    )
    refused = onceward("letters", "orders", "--coordinator", address, *words)
    assert (refused.returncode, refused.stdout) == (ExitCode.USAGE, "")
    assert says in refused.stderr, refused.stderr
    assert "No letter was read" in refused.stderr


def test_a_job_that_there_is_not_is_named(jobs: tuple[CoordinatorClient, str]) -> None:
    refused = onceward("letters", "absent", "--coordinator", jobs[1], *BROKERS)
    assert refused.returncode == ExitCode.USAGE
    assert "absent" in refused.stderr
