"""The judge must be able to say FAIL and UNKNOWN: right histories with one thing wrong, and what names it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.ops.verify import (
    AT_REST,
    Content,
    Fed,
    Grade,
    History,
    Lane,
    Part,
    Property,
    Told,
    Visible,
    judge,
    read_history,
    write_history,
)
from tests.checker.histories import GOOD, good_histories, with_seen_as_at_rest

LOST, TWICE, FOREIGN = Property.NOTHING_LOST, Property.NOTHING_TWICE, Property.NOTHING_FOREIGN
UNDECIDED, ORDER, PREFIX = Property.NOTHING_UNDECIDED, Property.ORDER, Property.PREFIX
DECISION, SETTLED, OPEN = Property.ONE_DECISION, Property.EVERYTHING_SETTLED, Property.NOTHING_OPEN


def _at(history: History, content: str) -> Visible:
    """The visible record with this value."""
    return next(one for one in history.rest if one.content.value == content)


def _without(history: History, value: str) -> History:
    """Never visible to anybody."""
    return replace(
        history,
        rest=[one for one in history.rest if one.content.value != value],
        seen=[one for one in history.seen if one.content.value != value],
    )


def _plus(history: History, content: Content, partition: int, *, at: float = 2e9) -> History:
    """Visible too, at the end of an output partition."""
    lane = Lane("out", partition)
    offset = max(one.offset for one in history.rest if one.lane == lane) + 1
    one = Visible(lane, offset, content)
    return replace(history, rest=[*history.rest, one], seen=[*history.seen, one._replace(at=at)])


def _doubled(history: History, value: str) -> History:
    one = _at(history, value)
    return _plus(history, one.content, one.lane.partition)


def _exchanged(history: History, a: str, b: str) -> History:
    """Two records of one output partition change places in the log."""
    first, second = _at(history, a), _at(history, b)
    assert first.lane == second.lane
    swap = {first.offset: second.content, second.offset: first.content}

    def changed(one: Visible) -> Visible:
        return one._replace(content=swap[one.offset]) if one.lane == first.lane and one.offset in swap else one

    return replace(history, rest=[*map(changed, history.rest)], seen=[*map(changed, history.seen)])


def _moved(history: History, value: str) -> History:
    """The record is in the other output partition."""
    one = _at(history, value)
    return with_seen_as_at_rest(_plus(_without(history, value), one.content, 1 - one.lane.partition))


def _told(history: History, checkpoint: int, **changes: object) -> History:
    """What is said of a checkpoint at the end is another thing."""
    told = [
        one._replace(**changes) if one.last and one.checkpoint == checkpoint else one  # type: ignore[arg-type]
        for one in history.told
    ]
    return replace(history, told=told)


def _uncompleted(history: History, checkpoint: int, state: str) -> History:
    """A checkpoint was never completed, although its records are visible."""
    told = []
    for one in history.told:
        if one.checkpoint != checkpoint:
            told.append(one)
        elif one.state == "triggered" or one.last:
            told.append(one._replace(state=state if one.last else "triggered", ends=None))
    return replace(history, told=told, whole_input=False)


def _seen_early(history: History, value: str) -> History:
    """The concurrent reader had it before the decision."""
    seen = [one._replace(at=one.at - 0.5) if one.content.value == value else one for one in history.seen]
    return replace(history, seen=seen)


def _seen_later(history: History, value: str) -> History:
    """The concurrent reader got it after the next one of its partition."""
    one = next(one for one in history.seen if one.content.value == value)
    others = [other for other in history.seen if other is not one]
    place = next(i for i, other in enumerate(others) if other.lane == one.lane and other.offset > one.offset)
    return replace(history, seen=[*others[: place + 1], one, *others[place + 1 :]])


def _gap(history: History, part: Part) -> History:
    return replace(history, gaps={**history.gaps, part: ["the recorder died"]})


def _merged(history: History) -> History:
    """A second checkpoint, completed on the base of another one, covering nothing."""
    one = next(one for one in history.told if one.checkpoint == 5 and one.last)
    base = next(told for told in history.told if told.checkpoint == one.base and told.last)
    other = one._replace(checkpoint=9, ends=base.ends)
    return replace(history, told=[*history.told, other])


@dataclass(frozen=True, kw_only=True)
class Mutation:
    change: Callable[[History], History]
    fails: frozenset[Property] = frozenset()
    unknown: frozenset[Property] = frozenset()
    names: str = ""
    """Stands in the evidence."""


def _fails(change: Callable[[History], History], *properties: Property, names: str = "") -> Mutation:
    return Mutation(change=change, fails=frozenset(properties), names=names)


def _unknown(change: Callable[[History], History], *properties: Property, names: str = "") -> Mutation:
    return Mutation(change=change, unknown=frozenset(properties), names=names)


MUTATIONS: dict[str, Mutation] = {
    # what is visible
    "a record is lost": _fails(lambda h: _without(h, "=0-5"), LOST, names="in-0 offset 5 of checkpoint 3"),
    "the last record is lost": _fails(lambda h: _without(h, "=1-12"), LOST, names="in-1 offset 12"),
    "a record is doubled": _fails(lambda h: _doubled(h, "=1-3"), TWICE, names="key-1-0 1-3"),
    "a checkpoint is written twice": _fails(
        lambda h: _doubled(_doubled(h, "=0-4"), "=0-5"), TWICE, names="2 records too many"
    ),
    "two records of a key are exchanged": _fails(
        lambda h: _exchanged(h, "=0-0", "=0-3"), ORDER, names="0-0 comes after offset 0 0-3"
    ),
    "two records of two checkpoints are exchanged": _fails(
        lambda h: _exchanged(h, "=0-3", "=0-6"),
        ORDER,
        PREFIX,
        UNDECIDED,
        names="records behind those of a later checkpoint",
    ),
    "a key moves to another partition": _fails(
        lambda h: _moved(h, "=1-12"), ORDER, names="keys in more than one partition"
    ),
    "a value is changed": _fails(
        lambda h: _plus(_without(h, "=0-5"), Content("out", "=key-0-2", "=0-5x"), 0), LOST, FOREIGN, names="0-5x"
    ),
    "a record goes to another topic": _fails(
        lambda h: replace(
            _without(h, "=0-5"),
            rest=[*_without(h, "=0-5").rest, Visible(Lane("other", 0), 0, Content("other", "=key-0-2", "=0-5"))],
            seen=[*_without(h, "=0-5").seen, Visible(Lane("other", 0), 0, Content("other", "=key-0-2", "=0-5"), 2e9)],
        ),
        LOST,
        FOREIGN,
        names="1 records belong to out",
    ),
    # what may be visible
    "records of an aborted checkpoint are visible": _fails(
        lambda h: _uncompleted(h, 6, "aborted"), UNDECIDED, names="out-"
    ),
    "records of an undecided checkpoint are visible": _fails(
        lambda h: _uncompleted(h, 6, "triggered"), UNDECIDED, SETTLED, names="6 of generation 1"
    ),
    "a record is visible before the decision": _fails(
        lambda h: _seen_early(h, "=0-5"), UNDECIDED, names="ms before checkpoint 3"
    ),
    # the concurrent reader
    "n+1 is seen before n": _fails(lambda h: _seen_later(h, "=0-1"), PREFIX, names="records seen after later ones"),
    "a record is seen twice": _fails(
        lambda h: replace(h, seen=[*h.seen, h.seen[4]]), PREFIX, names="seen twice by the concurrent reader"
    ),
    "a record is seen and gone afterwards": _fails(
        lambda h: replace(h, rest=[one for one in h.rest if one.content.value != "=0-5"]),
        LOST,
        PREFIX,
        names="are not there at rest",
    ),
    "a record is seen and another one afterwards": _fails(
        lambda h: replace(
            h,
            seen=[
                one._replace(content=one.content._replace(value="=0-5x")) if one.content.value == "=0-5" else one
                for one in h.seen
            ],
        ),
        PREFIX,
        names="are others at rest",
    ),
    "a record is never seen": _fails(
        lambda h: replace(h, seen=[one for one in h.seen if one.content.value != "=0-5"]),
        PREFIX,
        names="appeared behind the reader",
    ),
    # decisions
    "a completed checkpoint is aborted later": _fails(
        lambda h: _told(h, 2, state="aborted"), DECISION, names="checkpoint 2 was settled and is aborted"
    ),
    "an aborted checkpoint is completed later": _fails(
        lambda h: _told(h, 4, state="settled", ends={Lane("in", 0): 6, Lane("in", 1): 8}, base=3),
        DECISION,
        names="checkpoint 4 was aborted and is settled",
    ),
    "a decision is changed": _fails(
        lambda h: replace(
            h, told=[*h.told, next(t for t in h.told if t.checkpoint == 3 and t.last)._replace(generation=2)]
        ),
        DECISION,
        names="checkpoint 3 was of generation 1",
    ),
    "positions are changed": _fails(
        lambda h: _told(h, 6, ends={Lane("in", 0): 13, Lane("in", 1): 14}),
        DECISION,
        names="checkpoint 6 ended in-1 at 13 and ends it at 14",
    ),
    "a checkpoint is completed on an aborted one": Mutation(
        change=lambda h: replace(h, told=[one._replace(base=4) if one.checkpoint == 5 else one for one in h.told]),
        fails=frozenset({DECISION}),
        unknown=frozenset({UNDECIDED, PREFIX}),
        names="5 on 4, which is aborted",
    ),
    "two checkpoints are completed on one base": _fails(_merged, DECISION, names="5 and 9, both on 3"),
    # what is left
    "a checkpoint is not settled": _fails(
        lambda h: replace(
            _told(h, 6, state="completed"),
            told=[one for one in _told(h, 6, state="completed").told if (one.checkpoint, one.state) != (6, "settled")],
        ),
        SETTLED,
        names="6 of generation 1",
    ),
    "a transaction is open": _fails(
        lambda h: replace(h, open={"job.kafka.1.w.7": "Ongoing"}), OPEN, names="job.kafka.1.w.7 (Ongoing)"
    ),
    "readers are held back": _fails(
        lambda h: replace(h, ends=[h.ends[0]._replace(high=h.ends[0].high + 4), *h.ends[1:]]),
        OPEN,
        names="out-0: the last 4 offsets",
    ),
    "an input record is in no checkpoint": _fails(
        lambda h: replace(
            h, fed=[*h.fed, h.fed[-1]._replace(offset=h.fed[-1].offset + 1, outputs=(Content("out", "=k", "=v"),))]
        ),
        LOST,
        names="1 records in no completed checkpoint",
    ),
    # what was not recorded
    "the reader has a gap": _unknown(lambda h: _gap(h, Part.SEEN), UNDECIDED, PREFIX, names="the recorder died"),
    "the output was not read to its end": _unknown(
        lambda h: _gap(_without(h, "=1-12"), Part.REST), LOST, TWICE, FOREIGN, UNDECIDED, ORDER, PREFIX
    ),
    "the input was deleted by retention": _unknown(
        lambda h: _gap(h, Part.FED), LOST, TWICE, FOREIGN, UNDECIDED, ORDER, PREFIX
    ),
    "nobody asked what is open": _unknown(lambda h: _gap(h, Part.END), OPEN),
    "the coordinator's history is cut": _unknown(
        lambda h: replace(h, told=[one for one in h.told if one.checkpoint > 2]),
        UNDECIDED,
        PREFIX,
        DECISION,
        names="the checkpoints before 3 are known no longer",
    ),
    "nothing was told": _unknown(
        lambda h: replace(h, told=[]),
        UNDECIDED,
        PREFIX,
        DECISION,
        SETTLED,
        names="nothing was told of any checkpoint",
    ),
    "the positions of a restore are not told": _unknown(
        lambda h: replace(
            h, told=[one._replace(kind="restore", ends=None) if one.checkpoint == 3 else one for one in h.told]
        ),
        *{*Property} - {FOREIGN, OPEN},
        names="the positions of checkpoint 3",
    ),
    "a checkpoint cannot be read": _unknown(
        lambda h: _told(h, 3, state="unreadable", ends=None),
        *{*Property} - {FOREIGN, OPEN},
        names="checkpoint 3 cannot be read",
    ),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_what_is_wrong_is_named_and_nothing_else(name: str) -> None:
    mutation = MUTATIONS[name]
    verdict = judge(mutation.change(GOOD))
    assert verdict.having(Grade.FAIL) == mutation.fails, verdict.text()
    assert verdict.having(Grade.UNKNOWN) == mutation.unknown, verdict.text()
    assert verdict.grade is (Grade.FAIL if mutation.fails else Grade.UNKNOWN)
    assert mutation.names in verdict.text()


def test_the_good_history_passes_in_every_property() -> None:
    verdict = judge(GOOD)
    assert verdict.having(Grade.PASS) == {*Property}, verdict.text()


@settings(max_examples=150, deadline=None)
@given(history=good_histories())
def test_every_right_history_passes(history: History) -> None:
    verdict = judge(history)
    assert verdict.grade is Grade.PASS, verdict.text()


@settings(max_examples=100, deadline=None)
@given(history=good_histories().filter(lambda h: len(h.rest) > 0), data=st.data())
def test_a_lost_or_doubled_record_never_passes(history: History, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(history.rest) - 1))
    one = history.rest[place]
    if data.draw(st.booleans()):
        changed = with_seen_as_at_rest(replace(history, rest=[*history.rest[:place], *history.rest[place + 1 :]]))
        assert LOST in judge(changed).having(Grade.FAIL)
    else:
        failed = judge(_plus(history, one.content, one.lane.partition)).having(Grade.FAIL)
        # an equal one may have been fed, and be in no completed checkpoint
        assert failed & {TWICE, UNDECIDED}


@settings(max_examples=40, deadline=None)
@given(history=good_histories(), part=st.sampled_from(Part))
def test_a_history_with_a_gap_never_passes(history: History, part: Part) -> None:
    assert judge(_gap(history, part)).grade is Grade.UNKNOWN


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
    """Nothing that is missing can explain a decision that was changed."""
    verdict = judge(_gap(_told(GOOD, 2, state="aborted"), Part.PAST))
    assert DECISION in verdict.having(Grade.FAIL)


def _two_lanes(*log: str) -> History:
    """Two input partitions, ``same a`` and ``same b``, copied to one output partition that shows ``log``."""
    words = {0: ("same", "a"), 1: ("same", "b")}
    content = {word: Content("out", "=k", f"={word}") for word in ("same", "a", "b")}
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


def test_input_that_a_person_has_skipped_is_not_missed() -> None:
    """The skip moves the positions over two records that nobody has read."""
    lane = Lane("in", 0)
    fed = [Fed(lane, offset, (Content("out", "=k", f"={offset}"),)) for offset in range(6)]
    told = [
        Told(1, 0, 1, "checkpoint", "settled", {lane: 0}, last=True),
        Told(2, 1, 1, "checkpoint", "settled", {lane: 2}, last=True),
        Told(3, 2, 1, "skip", "settled", {lane: 4}, last=True),
        Told(4, 3, 2, "checkpoint", "settled", {lane: 6}, last=True),
    ]
    rest = [Visible(Lane("out", 0), place, fed[offset].outputs[0]) for place, offset in enumerate((0, 1, 4, 5))]
    history = History(job="job", fed=fed, rest=rest, told=told)
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
