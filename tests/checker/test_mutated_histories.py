"""The judge must be able to report FAIL and UNKNOWN: correct histories with one fault each, and what reports it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onceward.operate.verify import (
    AT_REST,
    CheckpointReport,
    Content,
    Fed,
    Grade,
    History,
    Lane,
    Part,
    Property,
    Visible,
    judge,
)
from tests.checker.histories import GOOD, good_histories, with_seen_as_at_rest
from tests.checker.mutations import MUTATIONS, one_more, reported_otherwise, with_gap
from tests.conftest import examples
from tests.support.history_files import read_history, write_history

LOST, TWICE, UNDECIDED = Property.NOTHING_LOST, Property.NOTHING_TWICE, Property.NOTHING_UNDECIDED
ORDER, DECISION = Property.ORDER, Property.ONE_DECISION


@pytest.mark.parametrize("name", MUTATIONS)
def test_only_faults_are_named(name: str) -> None:
    mutation = MUTATIONS[name]
    verdict = judge(mutation.change(GOOD))
    assert verdict.having(Grade.FAIL) == mutation.fails, verdict.text()
    assert verdict.having(Grade.UNKNOWN) == mutation.unknown, verdict.text()
    assert verdict.grade is (Grade.FAIL if mutation.fails else Grade.UNKNOWN)
    assert mutation.names in verdict.text()


def test_the_good_history_passes_in_every_property() -> None:
    verdict = judge(GOOD)
    assert verdict.having(Grade.PASS) == {*Property}, verdict.text()


@settings(max_examples=examples(150))
@given(history=good_histories())
def test_every_right_history_passes(history: History) -> None:
    verdict = judge(history)
    assert verdict.grade is Grade.PASS, verdict.text()


@given(history=good_histories().filter(lambda h: len(h.rest) > 0), data=st.data())
def test_a_lost_or_doubled_record_never_passes(history: History, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(history.rest) - 1))
    one = history.rest[place]
    if data.draw(st.booleans()):
        changed = with_seen_as_at_rest(replace(history, rest=[*history.rest[:place], *history.rest[place + 1 :]]))
        assert LOST in judge(changed).having(Grade.FAIL)
    else:
        failed = judge(one_more(history, one.content, one.lane.partition)).having(Grade.FAIL)
        # an equal record may be among those that were fed but are in no completed checkpoint
        assert failed & {TWICE, UNDECIDED}


@settings(max_examples=examples(40))
@given(history=good_histories(), part=st.sampled_from(Part))
def test_a_history_with_a_gap_never_passes(history: History, part: Part) -> None:
    assert judge(with_gap(history, part)).grade is Grade.UNKNOWN


def test_a_file_gives_back_the_history_that_was_written(tmp_path: Path) -> None:
    file = tmp_path / "history"
    written = replace(GOOD, open={"job.kafka.1.w.7": "Ongoing"}, gaps={Part.SEEN: ["late"]})
    write_history(written, file)
    assert read_history(file) == written


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda content: content[: content.rindex(b"\n", 0, -1) + 1], "has no end"),
        (lambda content: content[:-7], "is not whole"),
        (lambda content: b"".join(content.splitlines(keepends=True)[:3] + content.splitlines(keepends=True)[4:]), "of"),
        (lambda content: content.replace(b'"row":"rest"', b'"row":', 1), "is damaged"),
    ],
    ids=["no end", "torn", "a line is gone", "a line is damaged"],
)
def test_a_cut_file_is_unknown(tmp_path: Path, damage: Callable[[bytes], bytes], words: str) -> None:
    file = tmp_path / "history"
    write_history(GOOD, file)
    file.write_bytes(damage(file.read_bytes()))
    verdict = judge(read_history(file))
    assert verdict.having(Grade.UNKNOWN) == {*Property}, verdict.text()
    assert words in verdict.text()


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other"
    file.write_text('{"row": "fed"}\n')
    with pytest.raises(ValueError, match="is no history"):
        read_history(file)


def test_a_certain_breach_in_a_cut_file_of_decisions_stays_a_breach() -> None:
    """No missing row can explain a decision that changed."""
    verdict = judge(with_gap(reported_otherwise(GOOD, 2, state="aborted"), Part.PAST))
    assert DECISION in verdict.having(Grade.FAIL)


def _two_lanes(*log: str) -> History:
    """Two input partitions, ``same a`` and ``same b``, copied to one output partition that shows ``log``."""
    words = {0: ("same", "a"), 1: ("same", "b")}
    content = {word: Content("out", "=k", f"={word}") for word in ("same", "a", "b", "x")}
    return History(
        job="job",
        fed=[Fed(Lane("in", n), offset, (content[word],)) for n in words for offset, word in enumerate(words[n])],
        rest=[Visible(Lane("out", 0), offset, content[word]) for offset, word in enumerate(log)],
        whole_input=True,
    )


def test_equal_records_of_one_partition_keep_their_order_where_one_of_them_is_lost() -> None:
    history = _two_lanes("same", "a", "b")
    again = replace(history, fed=[*history.fed, history.fed[0]._replace(offset=2)])
    shown = replace(again, rest=[history.rest[1], history.rest[0]], fed=[one for one in again.fed if not one.lane[1]])
    verdict = judge(shown, {LOST, ORDER})
    assert verdict.having(Grade.FAIL) == {LOST}, verdict.text()
    assert verdict.having(Grade.PASS) == {ORDER}, verdict.text()


def test_skipped_input_is_not_reported_missing() -> None:
    """The skip moves the positions past two records that the job never read."""
    lane = Lane("in", 0)
    fed = [Fed(lane, offset, (Content("out", "=k", f"={offset}"),)) for offset in range(6)]
    reports = [
        CheckpointReport(1, 0, 1, "checkpoint", "settled", {lane: 0}, last=True),
        CheckpointReport(2, 1, 1, "checkpoint", "settled", {lane: 2}, last=True),
        CheckpointReport(3, 2, 1, "skip", "settled", {lane: 4}, last=True),
        CheckpointReport(4, 3, 2, "checkpoint", "settled", {lane: 6}, last=True),
    ]
    rest = [Visible(Lane("out", 0), place, fed[offset].outputs[0]) for place, offset in enumerate((0, 1, 4, 5))]
    history = History(job="job", fed=fed, rest=rest, reports=reports)
    assert judge(history, AT_REST).grade is Grade.PASS
    shown = replace(history, rest=[*rest, Visible(Lane("out", 0), 4, fed[2].outputs[0])])
    assert judge(shown, AT_REST).having(Grade.FAIL) == {UNDECIDED}


def test_equal_records_of_two_partitions_pass_where_one_reading_is_in_order() -> None:
    for log in (("same", "a", "same", "b"), ("same", "same", "b", "a")):
        verdict = judge(_two_lanes(*log), {ORDER})
        assert verdict.grade is Grade.PASS, (log, verdict.text())


def test_equal_records_of_two_partitions_are_unknown_where_no_reading_in_order_was_found() -> None:
    for log in (("a", "same", "b", "same"), ("same", "b", "same", "a")):
        verdict = judge(_two_lanes(*log), {LOST, TWICE, ORDER})
        assert verdict.having(Grade.PASS) == {LOST, TWICE}
        assert verdict.having(Grade.UNKNOWN) == {ORDER}


def _one_lane(*logs: str) -> History:
    """``same a same b`` of one input partition, copied to output partitions that show ``logs``, whatever the keys."""
    content = {word: Content("out", "=k", f"={word}") for word in ("same", "a", "b")}
    return History(
        job="job",
        fed=[Fed(Lane("in", 0), offset, (content[word],)) for offset, word in enumerate(("same", "a", "same", "b"))],
        rest=[
            Visible(Lane("out", partition), offset, content[word])
            for partition, log in enumerate(logs)
            for offset, word in enumerate(log.split())
        ],
        whole_input=True,
        by_key=False,
    )


def test_equal_records_of_one_partition_leave_no_doubt_unless_several_output_partitions_have_them() -> None:
    certain = judge(_one_lane("b same a same"), {ORDER})
    assert certain.having(Grade.FAIL) == {ORDER}, certain.text()
    doubtful = judge(_one_lane("b same", "a same"), {ORDER})
    assert doubtful.having(Grade.UNKNOWN) == {ORDER}, doubtful.text()
    assert judge(_one_lane("same a same b"), {ORDER}).grade is Grade.PASS


def _decided(*log: str) -> History:
    """`_two_lanes` with decisions: checkpoint 2, at 10 s, covers the first input partition; 3, at 20 s, the second."""
    lanes = Lane("in", 0), Lane("in", 1)
    decided = {1: (0, 0, 1.0), 2: (2, 0, 10.0), 3: (2, 2, 20.0)}
    reports = [
        CheckpointReport(
            number, number - 1, 1, "checkpoint", "settled", dict(zip(lanes, ends, strict=True)), at, last=True
        )
        for number, (*ends, at) in decided.items()
    ]
    history = _two_lanes(*log)
    return replace(history, reports=reports, seen=[one._replace(at=21.0 + one.offset) for one in history.rest])


def _seen_at(history: History, offset: int, at: float) -> History:
    return replace(history, seen=[one._replace(at=at if one.offset == offset else one.at) for one in history.seen])


def test_an_early_record_that_has_an_equal_is_neither_certain_nor_passed_over() -> None:
    """Which of the two was visible before its decision depends on how the judge matches them."""
    history = _decided("same", "a", "same", "b")
    assert judge(history, {UNDECIDED}).grade is Grade.PASS
    verdict = judge(_seen_at(history, 2, 15.0), {UNDECIDED})
    assert verdict.having(Grade.UNKNOWN) == {UNDECIDED}, verdict.text()
    assert "visible before their checkpoint was decided" in verdict.text()


def test_a_record_of_no_checkpoint_is_certain_whatever_the_equal_ones_are() -> None:
    history = _decided("same", "a", "same", "b")
    other = Fed(Lane("in", 0), 2, (Content("out", "=k", "=c"),))
    shown = one_more(replace(history, fed=[*history.fed, other], whole_input=False), other.outputs[0], 0)
    assert judge(shown, {UNDECIDED}).having(Grade.FAIL) == {UNDECIDED}


def test_a_later_checkpoint_that_comes_first_in_one_reading_only_is_unknown() -> None:
    verdict = judge(_decided("same", "same", "a", "b"), {Property.PREFIX, ORDER})
    assert verdict.having(Grade.UNKNOWN) == {Property.PREFIX}, verdict.text()
    assert verdict.having(Grade.PASS) == {ORDER}, verdict.text()


@pytest.mark.parametrize(("early", "grade"), [(0.001, Grade.PASS), (0.004, Grade.FAIL)])
def test_a_decision_is_as_old_as_its_millisecond_allows(early: float, grade: Grade) -> None:
    history = _decided("x", "a", "same", "b")
    fed = [one._replace(outputs=(Content("out", "=k", "=x"),)) if one == history.fed[0] else one for one in history.fed]
    assert judge(_seen_at(replace(history, fed=fed), 1, 10.0 - early), {UNDECIDED}).grade is grade


@pytest.mark.parametrize("part", [Part.SEEN, Part.PAST])
def test_unwatched_checkpoints_are_not_missed_when_only_the_end_is_judged(part: Part) -> None:
    assert judge(with_gap(GOOD, part), AT_REST).grade is Grade.PASS
    assert UNDECIDED in judge(with_gap(GOOD, part)).having(Grade.UNKNOWN)
