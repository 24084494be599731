"""The prefix rule: what a ``read_committed`` reader that reads during the run may have seen at any time.

Kafka shows the transactions of one checkpoint one by one, and keeps an order only within an output partition
(docs/protocol.md#visibility). So at any time, for each output partition *o* separately:

1. what the reader had of *o* is a prefix of what *o* holds at rest: no record twice, none going backwards, none that
   appears at an offset the reader has passed, none that is gone afterwards;
2. for each input partition *i*, what it had of *i* in *o* is a prefix of what *i* has for *o*, in the order of *i*;
3. that prefix ends on a checkpoint boundary, except for the newest checkpoint in *o*: this one is decided, so single
   transactions of it may be visible, or only parts of them where one that is not yet ended holds readers back. So no
   record of a checkpoint is ever in *o* after a record of a later one.

Rules 2 and 3 are properties of the log, because readers follow it: where rule 1 holds, the log at rest shows them
(``matching``). *Nothing undecided* uses the clock to check that a checkpoint was decided before its records were seen.
"""

from collections import defaultdict
from collections.abc import Iterator

from onceward.operate.verify.history import History, Lane, Visible
from onceward.operate.verify.verdict import Breach

__all__ = ["broken_prefixes"]


def broken_prefixes(history: History) -> Iterator[Breach]:
    """Yield breaches of rule 1."""
    rest: dict[Lane, dict[int, Visible]] = defaultdict(dict)
    for one in history.rest:
        rest[one.lane][one.offset] = one
    seen: dict[Lane, dict[int, Visible]] = defaultdict(dict)
    newest: dict[Lane, int] = {}
    for one in history.seen:
        topic = one.lane.topic
        if one.offset in seen[one.lane]:
            yield Breach(topic, "records seen twice by the concurrent reader", str(one))
        elif one.offset < newest.get(one.lane, -1):
            yield Breach(topic, "records seen after later ones", f"{one}, after offset {newest[one.lane]}")
        there = rest[one.lane].get(one.offset)
        if there is None:
            yield Breach(topic, "records were seen and are not there at rest", str(one))
        elif there.content != one.content:
            yield Breach(topic, "records were seen and are others at rest", f"{one}, at rest {there.content}")
        seen[one.lane][one.offset] = one
        newest[one.lane] = max(one.offset, newest.get(one.lane, -1))
    for lane, records in rest.items():
        for offset, one in records.items():
            if offset not in seen[lane]:
                behind = offset < newest.get(lane, -1)
                kind = "records appeared behind the reader" if behind else "records never reached the reader"
                yield Breach(lane.topic, kind, str(one))
