"""The dead letters that the page of a job lists."""

import html
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from onceward.connectors.letter_counts import LetterCounts, LettersOfClass, Place
from onceward.connectors.letters import DEAD_LETTERS
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import CheckpointId, CheckpointState, Document, Participant, ParticipantName, Role
from onceward.watch.web.letters import JobLetters, letters_of
from onceward.wire.rows import CheckpointSummary, JobDescription
from tests.unit.web.chromium.prepared import LETTERS, prepared
from tests.unit.web.rows import checkpoint, job

OUT = Participant(name=ParticipantName("out"), role=Role.SINK, kind="kafka", place="Kafka topic orders")
DEAD = Participant(name=DEAD_LETTERS, role=Role.SINK, kind="kafka", place="Kafka topic orders-dead")
PLACE = Place("orders", 0, 17)
FORMER = Document(kind="dead-letters", version=1, body={"letters": 8, "window": [[600, 3], [700, 5]]})
NEWER = Document(kind="dead-letters", version=3, body={})


def kept(*each: dict[str, int], before: LetterCounts | None = None) -> list[Document]:
    """What the checkpoints from 1 on keep that have these letters of each class."""
    counts, found = before or LetterCounts(), []
    for number, letters in enumerate(each, 1):
        places = {kind: (count, [PLACE]) for kind, count in letters.items()}
        counts = counts.followed(CheckpointId(number), sum(letters.values()), (), places)
        found.append(counts.to_document())
    return found


def listed(*documents: Document | None) -> list[CheckpointSummary]:
    """Checkpoints from 1 on, the newest first; None for one that was aborted."""
    return [
        checkpoint(
            checkpoint=CheckpointId(number),
            kept=document,
            state=CheckpointState.ABORTED if document is None else CheckpointState.SETTLED,
        )
        for number, document in reversed([*enumerate(documents, 1)])
    ]


def described(*outputs: Participant) -> JobDescription:
    return JobDescription(
        summary=job("orders"),
        participants=outputs,
        settings=CheckpointSettings(),
        connected=True,
        unresolved={},
        driven=True,
    )


def shown(checkpoints: Sequence[CheckpointSummary], output: Participant = DEAD) -> JobLetters:
    found = letters_of(described(OUT, output), checkpoints, "127.0.0.1:7878")
    assert found is not None
    return found


def test_a_job_without_dead_letters_has_no_such_section() -> None:
    assert letters_of(described(OUT), listed(*kept({"ValueError": 1})), "") is None


def test_letters_are_shown_by_class_and_checkpoint_the_commonest_first() -> None:
    first, second, third = kept({"KeyError": 2}, {}, {"ValueError": 3})
    found = shown(listed(first, None, second, third))
    assert (found.total, found.upto, found.checkpoints, found.unclassed) == (5, 4, [1, 3, 4], 0)
    assert [(row.of.kind, row.of.letters, row.course) for row in found.rows] == [
        ("ValueError", 3, [0, 0, 3]),
        ("KeyError", 2, [2, 0, 0]),
    ]
    assert [(row.of.checkpoint, row.of.newest) for row in found.rows] == [(3, (PLACE,)), (1, (PLACE,))]


def test_the_commands_are_those_of_this_job_and_only_if_they_have_something_to_read() -> None:
    some, none = listed(*kept({"ValueError": 1})), listed(*kept({}))
    commands = [shlex.split(command) for command, _ in shown(some).commands]
    assert commands == [
        ["onceward", name, "orders", "--servers", "HOST:PORT", "--coordinator", "127.0.0.1:7878", *more]
        for name, more in (("letters", []), ("redrive", ["--dry-run"]))
    ]
    assert (shown(none).total, shown(none).commands) == (0, ())
    assert not shown(some, replace(DEAD, kind="postgres", place="PostgreSQL table dead")).commands
    assert shown([]).commands, "there may be some"


def test_what_an_earlier_version_has_counted_has_no_class_and_no_course() -> None:
    found = shown(listed(FORMER))
    assert (found.total, found.unclassed, found.rows, found.checkpoints) == (8, 8, [], [])
    (following,) = kept({"ValueError": 2}, before=LetterCounts.of(FORMER))
    found = shown(listed(FORMER, following))
    assert (found.total, found.unclassed, found.checkpoints) == (10, 8, [2])
    assert [row.course for row in found.rows] == [[2]]


@pytest.mark.parametrize(
    ("checkpoints", "says"),
    [
        (listed(NEWER), "Checkpoint 1 counts them as dead-letters in version 3"),
        (listed(replace(FORMER, version=2)), "dead-letters that cannot be read"),
        (listed(None, None), "None of the checkpoints that are listed"),
        ([], "None of the checkpoints that are listed"),
    ],
)
def test_what_is_not_known_is_not_guessed(checkpoints: Sequence[CheckpointSummary], says: str) -> None:
    found = shown(checkpoints)
    assert (found.total, found.rows) == (None, [])
    assert says in found.problem


def test_of_many_classes_the_commonest_are_shown() -> None:
    counts = LetterCounts(
        letters=100, classes=[LettersOfClass(kind=f"Error{number}", letters=number) for number in range(100)]
    )
    rows = shown(listed(counts.to_document())).rows
    assert [row.of.letters for row in rows] == [*range(99, 78, -1)]


def section(changed: Any = lambda answer: answer) -> str:
    """The text of the section on the page of the prepared job that has one."""
    with prepared(changed) as site:
        found = re.findall(r'<section aria-labelledby="letters">.*?</section>', site.get(f"/jobs/{LETTERS}").live)
    return str(found[0]) if found else ""


def keeping(document: Document | None) -> Any:
    """Every checkpoint of the job keeps this."""
    return lambda answer: replace(answer, kept=document) if isinstance(answer, CheckpointSummary) else answer


def words(markup: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", markup.replace("<wbr>", ""))).split())


def test_the_page_of_a_job_shows_its_dead_letters() -> None:
    markup = section()
    text = words(markup)
    assert "69 letters up to checkpoint 5120, 8 of them counted by an earlier version" in text
    places = " ".join(f"inventory-changes-1 offset {offset}" for offset in (277523, 277522, 277521))
    assert f"JSONDecodeError 42 42 5119 {places} KeyError" in text
    assert markup.count('aria-label="KeyError in the last 29 checkpoints"') == 1
    assert "&lt;b&gt;Odd&lt;/b&gt;" in markup
    assert f"onceward redrive {LETTERS} --servers HOST:PORT --coordinator 127.0.0.1:7878 --dry-run" in text


def test_the_page_says_in_one_sentence_that_there_are_none_or_that_it_is_not_known() -> None:
    (none,), (one,) = kept({}), kept({"ValueError": 1})
    assert words(section(keeping(none))) == "Dead letters No letters up to checkpoint 5120."
    assert "1 letter up to checkpoint 5120. Class Letters Last 30 checkpoints" in words(section(keeping(one)))
    newer = words(section(keeping(NEWER)))
    assert "It is not known how many there are. Checkpoint 5120 counts them as dead-letters in version 3" in newer
    assert "A newer coordinator shows them. onceward letters inventory" in newer


def test_the_page_of_a_job_without_them_does_not_ask_for_them() -> None:
    def without(answer: Any) -> Any:
        if isinstance(answer, CheckpointSummary):
            assert answer.kept is None
        return replace(answer, participants=(OUT,)) if isinstance(answer, JobDescription) else answer

    assert section(without) == ""
