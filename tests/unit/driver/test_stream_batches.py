"""The place of a batch in a job's history: Spark may run batches again, stop, or continue from an older copy."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.driver.streaming.batches import (
    Batch,
    Found,
    Place,
    batch_of,
    check_positions,
    describe_refusal,
    digest_of,
    place,
    positions_after,
    positions_before_the_first,
    with_digest,
)
from onceward.protocol.values import Document
from tests.support.documents import author

FIVE = Batch(query="q", number=5, offsets="five")


def found(number: int, offsets: str = "x", *, query: str = "q", after: int | None = None) -> Found:
    return found_of(Batch(query=query, number=number, offsets=offsets), number - 1 if after is None else after)


def found_of(batch: Batch, after: int) -> Found:
    return Found(batch=batch, after=after, location="file:/data/totals")


def positions_of(batch: Batch | None) -> Document:
    if batch is None:
        return positions_before_the_first()
    return with_digest(positions_after(found_of(batch, batch.number - 1)), "3:0000000000000001")


@pytest.mark.parametrize(
    ("one", "expected"),
    [
        (found(6), Place.NEXT),
        (found(5, "five"), Place.COMPLETED),
        (found(5, "other"), Place.OLDER_COPY),
        (found(3), Place.OLDER_COPY),
        (found(7), Place.GAP),
        (found(7, after=5), Place.NEXT),
        (found(0, query="another"), Place.OTHER_QUERY),
        (found(6, query="another"), Place.OTHER_QUERY),
    ],
)
def test_only_the_next_batch_is_written(one: Found, expected: Place) -> None:
    assert place(FIVE, one) is expected


SECOND = replace(FIVE, in_parts=True)


@pytest.mark.parametrize(
    ("base", "one", "continue_at", "expected"),
    [
        (FIVE, found_of(SECOND, 4), None, Place.SECOND_CALL),
        (SECOND, found_of(SECOND, 4), None, Place.COMPLETED),
        (SECOND, found(5, "five"), None, Place.IN_PARTS),
        (SECOND, found(5, "five"), 5, Place.COMPLETED),
        (SECOND, found(6), None, Place.NEXT),
        (FIVE, found(8), 8, Place.NEXT),
        (FIVE, found(8), 7, Place.GAP),
        (FIVE, found(4), 4, Place.OLDER_COPY),
        (FIVE, found(6, query="another"), 6, Place.OTHER_QUERY),
    ],
)
def test_a_person_may_continue_at_one_batch_and_a_second_call_is_never_a_whole_batch(
    base: Batch, one: Found, continue_at: int | None, expected: Place
) -> None:
    assert place(base, one, continue_at=continue_at) is expected


def test_the_mark_of_a_second_call_is_read_as_it_was_written_and_stays() -> None:
    assert batch_of(positions_of(SECOND)) == SECOND
    check_positions(positions_of(SECOND), positions_of(FIVE), author())
    with pytest.raises(ValueError, match="base's"):
        check_positions(positions_of(FIVE), positions_of(SECOND), author())


@pytest.mark.parametrize("number", [0, 57])
def test_a_job_begins_with_the_batch_that_its_query_has_reached(number: int) -> None:
    assert place(None, found(number)) is Place.NEXT


class Directory:
    """A checkpointLocation as Spark keeps it: input per batch number, and the newest batch that Spark committed."""

    def __init__(self, query: str) -> None:
        self.query, self.offsets, self.committed = query, dict[int, str](), -1

    def copy(self) -> "Directory":
        made = Directory(self.query)
        made.offsets, made.committed = dict(self.offsets), self.committed
        return made

    def next(self, new_input: str) -> Found:
        """The batch that Spark runs next; an open batch keeps its input."""
        number = self.committed + 1
        return found(number, self.offsets.setdefault(number, new_input), query=self.query)


STEPS = st.lists(
    st.tuples(st.sampled_from(["run", "stop before", "stop after", "copy", "swap", "delete"]), st.integers(0, 1)),
    max_size=40,
)


@given(STEPS)
def test_whatever_is_written_is_one_unbroken_history_of_one_query(steps: list[tuple[str, int]]) -> None:
    """Two applications take turns on two directories, which are deleted, copied and put back."""
    directories = [Directory("q0"), Directory("q1")]
    copies = [directory.copy() for directory in directories]
    base: Batch | None = None
    written: list[Batch] = []
    for number, (step, which) in enumerate(steps):
        directory = directories[which]
        match step:
            case "copy":
                copies[which] = directory.copy()
            case "swap":
                directories[which], copies[which] = copies[which], directory
            case "delete":
                directories[which] = Directory(f"q{which}-{number}")
            case _:
                one = directory.next(f"input {number}")
                if step == "stop before":
                    continue
                where = place(base, one)
                if where is Place.NEXT:
                    base = one.batch
                    written.append(one.batch)
                if where in (Place.NEXT, Place.COMPLETED) and step == "run":
                    directory.committed = one.batch.number  # only after the sink has returned
    assert len({batch.query for batch in written}) <= 1
    assert [batch.number for batch in written] == list(range(len(written)))


@pytest.mark.parametrize("one", [found(3), found(5, "other"), found(7), found(6, query="another")])
def test_a_refusal_names_both_batches_and_the_command_that_begins_again(one: Found) -> None:
    text = describe_refusal("totals", place(FIVE, one), FIVE, one)
    assert f"batch {one.batch.number}" in text
    assert "Nothing of the batch was written" in text
    assert "onceward forget totals" in text


@pytest.mark.parametrize("batch", [None, FIVE])
def test_positions_are_read_as_they_were_written(batch: Batch | None) -> None:
    positions = positions_of(batch)
    assert batch_of(positions) == batch
    assert digest_of(positions) == ("" if batch is None else "3:0000000000000001")


@pytest.mark.parametrize(
    "document",
    [
        Document(kind="kafka-positions", version=1, body={}),
        Document(
            kind="spark-batch", version=2, body={"query": "q", "batch": 5, "offsets": "x", "digest": "", "location": ""}
        ),
        Document(
            kind="spark-batch",
            version=1,
            body={"query": "q", "batch": -1, "offsets": "x", "digest": "", "location": ""},
        ),
        Document(
            kind="spark-batch",
            version=1,
            body={"query": "q", "batch": True, "offsets": "x", "digest": "", "location": ""},
        ),
        Document(
            kind="spark-batch",
            version=1,
            body={"query": None, "batch": 5, "offsets": "x", "digest": "", "location": ""},
        ),
        Document(kind="spark-batch", version=1, body={"query": "q", "batch": 5, "offsets": "x", "digest": ""}),
        Document(kind="spark-batch", version=1, body={}),
    ],
)
def test_the_coordinator_rejects_positions_that_mean_nothing(document: Document) -> None:
    with pytest.raises(ValueError, match="document"):
        check_positions(document, None, author())


def test_the_coordinator_rejects_positions_that_go_back_or_change_the_query() -> None:
    base = positions_of(FIVE)
    for fine in (FIVE, replace(FIVE, number=6), replace(FIVE, number=8)):
        check_positions(positions_of(fine), base, author())
    for wrong in (None, replace(FIVE, number=4), replace(FIVE, query="r"), replace(FIVE, offsets="other")):
        with pytest.raises(ValueError, match=r"base's"):
            check_positions(positions_of(wrong), base, author())
