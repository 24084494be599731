"""Which documents the plugged-in checkers receive, and what follows from their verdicts."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from onceward.common.errors import ConfigurationError
from onceward.coordinator.service.documents import Checkers
from onceward.protocol.durable import Durable, UndecidedCheckpoint
from onceward.protocol.events import Acknowledge, Amend, Event, Renew
from onceward.protocol.kinds import DocumentChecker
from onceward.protocol.state import JobState, PendingCheckpoint
from onceward.protocol.values import (
    Author,
    CheckpointId,
    Committable,
    CompletedCheckpoint,
    Document,
    Generation,
    JobName,
    Snapshot,
)
from tests.support.documents import author
from tests.support.scripted import SINK, SOURCE


def checked(offset: int, kind: str = "checked") -> Document:
    return Document(kind=kind, version=1, body={"offset": offset})


def check(document: Document, base: Document | None, author: Author) -> None:
    """Refuse an offset that goes backwards or is negative."""
    if document.body["offset"] < (base.body["offset"] if base is not None else 0):
        raise ValueError(f"offset {document.body['offset']} is wrong")


CHECKERS = Checkers({"checked": check})
DURABLE = Durable(
    job=JobName("orders"),
    store_id="s",
    generation=Generation(2),
    driver="d",
    participants=(SOURCE, SINK),
    completed=CompletedCheckpoint(
        id=CheckpointId(6),
        base=CheckpointId(5),
        generation=Generation(2),
        snapshots={SOURCE.name: Snapshot(positions=checked(10))},
    ),
    pending=UndecidedCheckpoint(id=CheckpointId(7), base=CheckpointId(6)),
)


def state(durable: Durable = DURABLE) -> JobState:
    return JobState(durable=durable, pending=PendingCheckpoint(started=0.0))


def acknowledging(snapshot: Snapshot) -> Acknowledge:
    return Acknowledge(
        now=0.0,
        generation=Generation(2),
        checkpoint=CheckpointId(7),
        participant=SOURCE.name,
        base=CheckpointId(6),
        snapshot=snapshot,
    )


BACKWARDS = acknowledging(Snapshot(positions=checked(9)))


def committables(*offsets: int) -> tuple[Committable, ...]:
    return tuple(Committable(slot=slot, document=checked(offset)) for slot, offset in enumerate(offsets))


def amending(*offsets: int) -> Amend:
    return Amend(
        now=0.0,
        generation=Generation(2),
        checkpoint=CheckpointId(6),
        participant=SINK.name,
        amendment=0,
        slots=frozenset(range(len(offsets))),
        committables=committables(*offsets),
    )


@pytest.mark.parametrize(
    ("event", "names"),
    [
        (BACKWARDS, ("source", "offset 9")),
        (acknowledging(Snapshot(committables=committables(3, -4))), ("source", "slot 1", "offset -4")),
        (acknowledging(Snapshot(positions=checked(11), committables=committables(-1))), ("slot 0", "offset -1")),
        (amending(5, -2), ("sink", "slot 1", "offset -2")),
    ],
)
def test_a_document_that_a_checker_rejects_is_refused_and_named(event: Event, names: tuple[str, ...]) -> None:
    problem = CHECKERS.problem(state(), event)
    assert problem is not None
    assert all(name in problem for name in names), problem


@pytest.mark.parametrize(
    "event",
    [
        acknowledging(Snapshot(positions=checked(10))),
        acknowledging(Snapshot(positions=checked(9, kind="unknown here"))),
        acknowledging(Snapshot(committables=committables(3))),  # positions are not compared with committables
        amending(3),
        Renew(now=0.0, generation=Generation(2)),
    ],
)
def test_valid_and_unknown_documents_are_accepted(event: Event) -> None:
    assert CHECKERS.problem(state(), event) is None


@pytest.mark.parametrize(
    "durable",
    [
        replace(DURABLE, driver=None),
        replace(DURABLE, generation=Generation(3)),
        replace(DURABLE, pending=None),
        replace(DURABLE, pending=UndecidedCheckpoint(id=CheckpointId(8), base=CheckpointId(6))),
        replace(DURABLE, pending=UndecidedCheckpoint(id=CheckpointId(7), base=CheckpointId(5))),
    ],
    ids=["no driver", "another generation", "nothing pending", "another checkpoint", "another base"],
)
def test_calls_that_the_protocol_refuses_are_not_checked(durable: Durable) -> None:
    """A late driver must hear that it is fenced, not that its positions are wrong."""
    assert CHECKERS.problem(state(durable), BACKWARDS) is None


def test_first_positions_have_nothing_to_be_compared_with() -> None:
    first = replace(DURABLE, completed=None)
    assert CHECKERS.problem(state(first), BACKWARDS) is None
    others = replace(DURABLE, completed=replace(DURABLE.completed, snapshots={}))  # type: ignore[type-var]
    assert CHECKERS.problem(state(others), BACKWARDS) is None


def test_a_document_that_breaks_a_checker_is_refused_with_its_error() -> None:
    def failing(_document: Document, _base: Document | None, _author: Author) -> None:
        raise KeyError("topics")

    problem = Checkers({"checked": failing}).problem(state(), BACKWARDS)
    assert problem is not None
    assert "KeyError" in problem
    assert "topics" in problem


@pytest.mark.parametrize("broken", [ValueError, KeyError])
def test_a_refusal_that_quotes_a_document_can_be_stored_and_sent(broken: type[Exception]) -> None:
    """PostgreSQL stores no NUL, and nothing that UTF-8 cannot represent can be stored or sent; JSON escapes both."""

    def quoting(document: Document, _base: Document | None, _author: Author) -> None:
        raise broken(document.body["topic"])

    positions = Document(kind="checked", version=1, body={"topic": "a\0b\ud800c"})
    problem = Checkers({"checked": quoting}).problem(state(), acknowledging(Snapshot(positions=positions)))
    assert problem is not None
    assert problem.isprintable()
    problem.encode("utf-8")


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Install a distribution whose kind of system is at ``value``, and whose checker for ``mine`` is at ``where``."""

    def install(value: str = "mine_of_a_test:KIND", where: str = "mine_of_a_test:check") -> None:
        (tmp_path / "mine_of_a_test.py").write_text(
            "def check(document, base, author):\n    raise ValueError('never')\n"
            "from onceward.protocol.kinds import Kind\n"
            f"KIND = Kind(documents={{'mine': {where!r}}})\n"
        )
        metadata = tmp_path / "mine-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
        (metadata / "entry_points.txt").write_text(f"[onceward.systems]\nmine = {value}\n")
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "mine_of_a_test", raising=False)  # that of another test

    return install


def test_the_checkers_of_installed_kinds_are_asked(install: Callable[..., None]) -> None:
    install()
    mine = acknowledging(Snapshot(positions=checked(10, kind="mine")))
    problem = Checkers.installed().problem(state(), mine)
    assert problem is not None
    assert "never" in problem
    assert Checkers({}).problem(state(), mine) is None


@pytest.mark.parametrize("value", ["no_such_module:check", "mine_of_a_test:no_such_name"])
@pytest.mark.parametrize("of", ["value", "where"])
def test_without_a_kind_or_a_checker_that_is_installed_nothing_starts(
    install: Callable[..., None], of: str, value: str
) -> None:
    install(**{of: value})
    with pytest.raises(ConfigurationError, match="mine") as refused:
        Checkers.installed()
    assert value in str(refused.value)
    assert "no_such" in str(refused.value.__cause__)


def test_checkers_get_the_document_its_base_and_its_author() -> None:
    """Only the driver's own generation may have made what it acknowledges, or what it writes again."""
    asked: list[tuple[Document, Document | None, Author]] = []
    note: DocumentChecker = lambda *given: asked.append(given)  # noqa: E731
    snapshot = Snapshot(positions=checked(12), committables=committables(3))
    assert Checkers({"checked": note}).problem(state(), acknowledging(snapshot)) is None
    assert Checkers({"checked": note}).problem(state(), amending(5)) is None
    source, sink = (author(DURABLE.job, one.name, first=2, last=2) for one in (SOURCE, SINK))
    assert asked == [(checked(12), checked(10), source), (checked(3), None, source), (checked(5), None, sink)]


def test_what_was_vetted_before_its_checkpoint_was_triggered_is_rejected_then() -> None:
    vetted = CHECKERS.vet(replace(DURABLE, pending=None), BACKWARDS)
    assert vetted.problem is not None
    assert CHECKERS.problem(state(replace(DURABLE, pending=None)), BACKWARDS, vetted) is None, "not awaited yet"
    assert CHECKERS.problem(state(), BACKWARDS, vetted) == vetted.problem


def test_what_was_vetted_with_other_positions_is_checked_again() -> None:
    completed = DURABLE.completed
    assert completed is not None
    earlier = replace(completed, id=CheckpointId(5), snapshots={SOURCE.name: Snapshot(positions=checked(8))})
    vetted = CHECKERS.vet(replace(DURABLE, completed=earlier), BACKWARDS)
    assert vetted.problem is None
    assert CHECKERS.problem(state(), BACKWARDS, vetted) is not None


def test_what_was_vetted_is_not_checked_again() -> None:
    checked_once: list[Document] = []
    checkers = Checkers({"checked": lambda found, *_: checked_once.append(found)})
    assert checkers.problem(state(), BACKWARDS, checkers.vet(DURABLE, BACKWARDS)) is None
    assert len(checked_once) == 1
