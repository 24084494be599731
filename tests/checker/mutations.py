"""Correct histories with one fault each, and the properties that must report it."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from onceward.operate.verify import Content, History, Lane, Part, Property, Visible
from tests.checker.histories import with_seen_as_at_rest

__all__ = ["MUTATIONS", "Mutation", "one_more", "reported_otherwise", "with_gap"]

LOST, TWICE, FOREIGN = Property.NOTHING_LOST, Property.NOTHING_TWICE, Property.NOTHING_FOREIGN
UNDECIDED, ORDER, PREFIX = Property.NOTHING_UNDECIDED, Property.ORDER, Property.PREFIX
DECISION, SETTLED, OPEN = Property.ONE_DECISION, Property.EVERYTHING_SETTLED, Property.NOTHING_OPEN


def _at(history: History, content: str) -> Visible:
    """The visible record with this value."""
    return next(one for one in history.rest if one.content.value == content)


def _without(history: History, value: str) -> History:
    """Remove a record from the output and from what the reader saw."""
    return replace(
        history,
        rest=[one for one in history.rest if one.content.value != value],
        seen=[one for one in history.seen if one.content.value != value],
    )


def one_more(history: History, content: Content, partition: int, *, at: float = 2e9) -> History:
    """Add a visible record at the end of an output partition."""
    lane = Lane("out", partition)
    offset = max(one.offset for one in history.rest if one.lane == lane) + 1
    one = Visible(lane, offset, content)
    return replace(history, rest=[*history.rest, one], seen=[*history.seen, one._replace(at=at)])


def _doubled(history: History, value: str) -> History:
    one = _at(history, value)
    return one_more(history, one.content, one.lane.partition)


def _exchanged(history: History, a: str, b: str) -> History:
    """Swap two records of one output partition in the log."""
    first, second = _at(history, a), _at(history, b)
    assert first.lane == second.lane
    swap = {first.offset: second.content, second.offset: first.content}

    def changed(one: Visible) -> Visible:
        return one._replace(content=swap[one.offset]) if one.lane == first.lane and one.offset in swap else one

    return replace(history, rest=[*map(changed, history.rest)], seen=[*map(changed, history.seen)])


def _moved(history: History, value: str) -> History:
    """Move a record to the other output partition."""
    one = _at(history, value)
    return with_seen_as_at_rest(one_more(_without(history, value), one.content, 1 - one.lane.partition))


def reported_otherwise(history: History, checkpoint: int, **changes: object) -> History:
    """Change what the coordinator says about a checkpoint at the end."""
    reports = [
        one._replace(**changes) if one.last and one.checkpoint == checkpoint else one  # type: ignore[arg-type]
        for one in history.reports
    ]
    return replace(history, reports=reports)


def _uncompleted(history: History, checkpoint: int, state: str) -> History:
    """Make a checkpoint uncompleted although its records are visible."""
    reports = []
    for one in history.reports:
        if one.checkpoint != checkpoint:
            reports.append(one)
        elif one.state == "triggered" or one.last:
            reports.append(one._replace(state=state if one.last else "triggered", ends=None))
    return replace(history, reports=reports, whole_input=False)


def _seen_early(history: History, value: str) -> History:
    """Let the concurrent reader see the record before the decision."""
    seen = [one._replace(at=one.at - 0.5) if one.content.value == value else one for one in history.seen]
    return replace(history, seen=seen)


def _seen_later(history: History, value: str) -> History:
    """Let the concurrent reader see the record after the next one of its partition."""
    one = next(one for one in history.seen if one.content.value == value)
    others = [other for other in history.seen if other is not one]
    place = next(i for i, other in enumerate(others) if other.lane == one.lane and other.offset > one.offset)
    return replace(history, seen=[*others[: place + 1], one, *others[place + 1 :]])


def with_gap(history: History, part: Part) -> History:
    return replace(history, gaps={**history.gaps, part: ["the recorder died"]})


def _merged(history: History) -> History:
    """Add a second checkpoint that is completed on the base of another one and covers no records."""
    one = next(one for one in history.reports if one.checkpoint == 5 and one.last)
    base = next(reports for reports in history.reports if reports.checkpoint == one.base and reports.last)
    other = one._replace(checkpoint=9, ends=base.ends)
    return replace(history, reports=[*history.reports, other])


@dataclass(frozen=True, kw_only=True)
class Mutation:
    change: Callable[[History], History]
    fails: frozenset[Property] = frozenset()
    unknown: frozenset[Property] = frozenset()
    names: str = ""
    """Text that the evidence contains."""


def _fails(change: Callable[[History], History], *properties: Property, names: str = "") -> Mutation:
    return Mutation(change=change, fails=frozenset(properties), names=names)


def _unknown(change: Callable[[History], History], *properties: Property, names: str = "") -> Mutation:
    return Mutation(change=change, unknown=frozenset(properties), names=names)


MUTATIONS: dict[str, Mutation] = {
    # what is visible
    "a record is lost": _fails(
        lambda h: _without(h, "=0-5"),
        LOST,
        names="out: 1 records lost, for example in-0 offset 5 of checkpoint 3: key-0-2 0-5",
    ),
    "the last record is lost": _fails(lambda h: _without(h, "=1-12"), LOST, names="in-1 offset 12"),
    "a record is doubled": _fails(lambda h: _doubled(h, "=1-3"), TWICE, names="key-1-0 1-3"),
    "a checkpoint is written twice": _fails(
        lambda h: _doubled(_doubled(h, "=0-4"), "=0-5"),
        TWICE,
        names="2 records too many, for example out-0 offset 19: key-0-2 0-5; out-1 offset 19: key-0-1 0-4",
    ),
    "two records of a key are exchanged": _fails(
        lambda h: _exchanged(h, "=0-0", "=0-3"),
        ORDER,
        names="key key-0-0 partition 0: offset 3 0-0 comes after offset 0 0-3",
    ),
    "two records of two checkpoints are exchanged": _fails(
        lambda h: _exchanged(h, "=0-3", "=0-6"),
        ORDER,
        PREFIX,
        UNDECIDED,
        names="records behind those of a later checkpoint",
    ),
    "a key moves to another partition": _fails(
        lambda h: _moved(h, "=1-12"), ORDER, names="so they have no order, for example key-1-0 in 0, 1"
    ),
    "a value is changed": _fails(
        lambda h: one_more(_without(h, "=0-5"), Content("out", "=key-0-2", "=0-5x"), 0), LOST, FOREIGN, names="0-5x"
    ),
    "a record goes to another topic": _fails(
        lambda h: replace(
            _without(h, "=0-5"),
            rest=[*_without(h, "=0-5").rest, Visible(Lane("other", 0), 0, Content("other", "=key-0-2", "=0-5"))],
            seen=[*_without(h, "=0-5").seen, Visible(Lane("other", 0), 0, Content("other", "=key-0-2", "=0-5"), 2e9)],
        ),
        LOST,
        FOREIGN,
        names="other: 1 records belong to out, for example other-0 offset 0: key-0-2 0-5",
    ),
    # what may be visible
    "records of an aborted checkpoint are visible": _fails(
        lambda h: _uncompleted(h, 6, "aborted"), UNDECIDED, names="out-"
    ),
    "records of an undecided checkpoint are visible": _fails(
        lambda h: _uncompleted(h, 6, "triggered"), UNDECIDED, SETTLED, names="6 of generation 1"
    ),
    "a record is visible before the decision": _fails(
        lambda h: _seen_early(h, "=0-5"), UNDECIDED, names="for example out-0 offset 6 300 ms before checkpoint 3"
    ),
    # the concurrent reader
    "n+1 is seen before n": _fails(
        lambda h: _seen_later(h, "=0-1"),
        PREFIX,
        names="records seen after later ones, for example out-1 offset 0: key-0-1 0-1, after offset 1",
    ),
    "a record is seen twice": _fails(
        lambda h: replace(h, seen=[*h.seen, h.seen[4]]),
        PREFIX,
        names="seen twice by the concurrent reader, for example out-1 offset 0: key-0-1 0-1",
    ),
    "a record is seen and gone afterwards": _fails(
        lambda h: replace(h, rest=[one for one in h.rest if one.content.value != "=0-5"]),
        LOST,
        PREFIX,
        names="were seen and are not there at rest, for example out-0 offset 6: key-0-2 0-5",
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
        names="are others at rest, for example out-0 offset 6: key-0-2 0-5x, at rest key-0-2 0-5",
    ),
    "a record is never seen": _fails(
        lambda h: replace(h, seen=[one for one in h.seen if one.content.value != "=0-5"]),
        PREFIX,
        names="appeared behind the reader, for example out-0 offset 6: key-0-2 0-5",
    ),
    # decisions
    "a completed checkpoint is aborted later": _fails(
        lambda h: reported_otherwise(h, 2, state="aborted"), DECISION, names="checkpoint 2 was settled and is aborted"
    ),
    "an aborted checkpoint is completed later": _fails(
        lambda h: reported_otherwise(h, 4, state="settled", ends={Lane("in", 0): 6, Lane("in", 1): 8}, base=3),
        DECISION,
        names="checkpoint 4 was aborted and is settled",
    ),
    "a decision is changed": _fails(
        lambda h: replace(
            h, reports=[*h.reports, next(t for t in h.reports if t.checkpoint == 3 and t.last)._replace(generation=2)]
        ),
        DECISION,
        names="checkpoint 3 was of generation 1",
    ),
    "positions are changed": _fails(
        lambda h: reported_otherwise(h, 6, ends={Lane("in", 0): 13, Lane("in", 1): 14}),
        DECISION,
        names="checkpoint 6 ended in-1 at 13 and ends it at 14",
    ),
    "a checkpoint is completed on an aborted one": Mutation(
        change=lambda h: replace(
            h, reports=[one._replace(base=4) if one.checkpoint == 5 else one for one in h.reports]
        ),
        fails=frozenset({DECISION}),
        unknown=frozenset({UNDECIDED, PREFIX}),
        names="5 on 4, which is aborted",
    ),
    "two checkpoints are completed on one base": _fails(_merged, DECISION, names="5 and 9, both on 3"),
    # what remains at the end
    "a checkpoint is not settled": _fails(
        lambda h: replace(
            reported_otherwise(h, 6, state="completed"),
            reports=[
                one
                for one in reported_otherwise(h, 6, state="completed").reports
                if (one.checkpoint, one.state) != (6, "settled")
            ],
        ),
        SETTLED,
        names="6 of generation 1",
    ),
    "a transaction is open": _fails(
        lambda h: replace(h, open={"job.kafka.1.w.7": "Ongoing"}),
        OPEN,
        names="open; 1 transactions are still open, for example job.kafka.1.w.7 (Ongoing)",
    ),
    "readers are held back": _fails(
        lambda h: replace(h, ends=[h.ends[0]._replace(high=h.ends[0].high + 4), *h.ends[1:]]),
        OPEN,
        names="back from read_committed readers, for example out-0: the last 4 offsets, 20 to 24",
    ),
    "an input record is in no checkpoint": _fails(
        lambda h: replace(
            h, fed=[*h.fed, h.fed[-1]._replace(offset=h.fed[-1].offset + 1, outputs=(Content("out", "=k", "=v"),))]
        ),
        LOST,
        names="in: 1 records in no completed checkpoint, for example in-1 offset 13: k v",
    ),
    # what was not recorded
    "the reader has a gap": _unknown(lambda h: with_gap(h, Part.SEEN), UNDECIDED, PREFIX, names="the recorder died"),
    "the output was not read to its end": _unknown(
        lambda h: with_gap(_without(h, "=1-12"), Part.REST), LOST, TWICE, FOREIGN, UNDECIDED, ORDER, PREFIX
    ),
    "the input was deleted by retention": _unknown(
        lambda h: with_gap(h, Part.FED), LOST, TWICE, FOREIGN, UNDECIDED, ORDER, PREFIX
    ),
    "open transactions were not listed": _unknown(lambda h: with_gap(h, Part.END), OPEN),
    "the coordinator's history is cut": _unknown(
        lambda h: replace(h, reports=[one for one in h.reports if one.checkpoint > 2]),
        UNDECIDED,
        PREFIX,
        DECISION,
        names="the checkpoints before 3 are known no longer",
    ),
    "nothing was reported": _unknown(
        lambda h: replace(h, reports=[]),
        UNDECIDED,
        PREFIX,
        DECISION,
        SETTLED,
        names="no checkpoint was reported",
    ),
    "the positions of a restore are not reported": _unknown(
        lambda h: replace(
            h, reports=[one._replace(kind="restore", ends=None) if one.checkpoint == 3 else one for one in h.reports]
        ),
        *{*Property} - {FOREIGN, OPEN},
        names="the positions of checkpoint 3",
    ),
    "a checkpoint cannot be read": _unknown(
        lambda h: reported_otherwise(h, 3, state="unreadable", ends=None),
        *{*Property} - {FOREIGN, OPEN},
        names="checkpoint 3 cannot be read",
    ),
}
