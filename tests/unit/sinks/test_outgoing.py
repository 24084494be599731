"""The batches of one partition: what is sent again, in which order, and when the slot fails."""

import pyarrow as pa
import pytest

pytest.importorskip("onceward_native")
from onceward.sinks.kafka.client.native.meanings import Meaning, meaning_of
from onceward.sinks.kafka.client.native.outgoing import Outgoing
from onceward_native import Batch

LATER = 1_000_000.0


def batch(number: int, records: int = 10) -> Batch:
    return Batch(
        partition=0, data=pa.py_buffer(b"%d" % number), records=records, base_sequence=number * 10, max_timestamp=0
    )


@pytest.fixture
def batches() -> list[Batch]:
    return [batch(number) for number in range(9)]


@pytest.fixture
def outgoing(batches: list[Batch]) -> Outgoing:
    """With all batches; the first is confirmed."""
    made = Outgoing("out", 0)
    made.added = True
    for each in batches:
        made.add(each)
    assert sent(made) == batches[:1]
    assert made.answered(batches[0], Meaning.WRITTEN, 0.0) == 10
    return made


def sent(outgoing: Outgoing, now: float = LATER) -> list[Batch]:
    """Send what can be sent."""
    found = []
    while outgoing.wants(now):
        found.append(outgoing.next())
        outgoing.sent(node=1)
    return found


def test_nothing_is_sent_before_the_partition_belongs_to_the_transaction() -> None:
    made = Outgoing("out", 0)
    made.add(batch(0))
    assert sent(made) == []
    made.added = True
    assert len(sent(made)) == 1


def test_the_first_batch_is_sent_alone(batches: list[Batch]) -> None:
    """A leader that knows nothing of the producer would take the second without it."""
    made = Outgoing("out", 0)
    made.added = True
    for each in batches:
        made.add(each)
    assert sent(made) == batches[:1]
    assert made.answered(batches[0], Meaning.AGAIN, 0.0) == 0
    assert sent(made) == batches[:1]
    assert made.answered(batches[0], Meaning.WRITTEN, 0.0) == 10
    assert sent(made) == batches[1:6]


def test_five_batches_at_most_are_on_their_way(outgoing: Outgoing, batches: list[Batch]) -> None:
    assert sent(outgoing) == batches[1:6]
    outgoing.answered(batches[1], Meaning.WRITTEN, 0.0)
    assert sent(outgoing) == batches[6:7]


def test_after_a_lost_connection_all_that_was_not_confirmed_is_sent_again_in_order(
    outgoing: Outgoing, batches: list[Batch]
) -> None:
    flying = sent(outgoing)
    assert outgoing.answered(flying[0], Meaning.WRITTEN, 0.0) == 10
    for each in flying[1:]:
        assert outgoing.answered(each, Meaning.MOVED, 0.0) == 0
    assert sent(outgoing) == batches[2:7]


def test_what_follows_a_batch_that_is_sent_again_waits_for_all_answers(
    outgoing: Outgoing, batches: list[Batch]
) -> None:
    flying = sent(outgoing)
    assert outgoing.answered(flying[0], Meaning.AGAIN, 0.0) == 0
    assert sent(outgoing) == []
    for each in flying[1:]:
        assert outgoing.answered(each, Meaning.BEHIND, 0.0) == 0
        assert (sent(outgoing) == []) == (each is not flying[-1])
    assert not outgoing.wants(LATER)


def test_a_batch_is_confirmed_once_though_it_was_sent_twice(outgoing: Outgoing, batches: list[Batch]) -> None:
    """The leader had the first batch and its answer said otherwise; it took the second."""
    flying = sent(outgoing)
    confirmed = [outgoing.answered(flying[0], Meaning.AGAIN, 0.0), outgoing.answered(flying[1], Meaning.WRITTEN, 0.0)]
    confirmed += [outgoing.answered(each, Meaning.BEHIND, 0.0) for each in flying[2:]]
    assert confirmed == [0, 10, 0, 0, 0]
    again = sent(outgoing)
    assert again == [flying[0], *flying[2:]]
    assert [outgoing.answered(each, Meaning.WRITTEN, 0.0) for each in again] == [10] * 4


def test_a_batch_that_is_sent_again_stays_among_the_last_five_that_the_leader_has(
    outgoing: Outgoing, batches: list[Batch]
) -> None:
    """The leader has all five, and its first answer says otherwise. With a sixth it would not recognize the first."""
    flying = sent(outgoing)
    outgoing.answered(flying[0], Meaning.MOVED, 0.0)
    for each in flying[1:]:
        outgoing.answered(each, Meaning.WRITTEN, 0.0)
    assert sent(outgoing) == flying[:1]
    outgoing.answered(flying[0], Meaning.WRITTEN, 0.0)
    assert sent(outgoing) == batches[6:9]


@pytest.mark.parametrize("meaning", [Meaning.FAIL, Meaning.FENCED, Meaning.BEHIND])
def test_the_slot_fails_for_an_error_that_no_repetition_mends(
    outgoing: Outgoing, batches: list[Batch], meaning: Meaning
) -> None:
    """Out of order although no earlier batch is missing: the leader has lost one."""
    sent(outgoing)
    assert outgoing.answered(batches[1], meaning, 0.0) is None


def test_the_first_batch_out_of_order_fails_also_while_others_are_sent_again(
    outgoing: Outgoing, batches: list[Batch]
) -> None:
    flying = sent(outgoing)
    for each in flying:
        outgoing.answered(each, Meaning.MOVED, 0.0)
    again = sent(outgoing)
    outgoing.answered(again[1], Meaning.AGAIN, 0.0)
    assert outgoing.answered(again[0], Meaning.BEHIND, 0.0) is None


def test_there_is_a_pause_before_a_batch_is_sent_again(outgoing: Outgoing, batches: list[Batch]) -> None:
    for each in sent(outgoing, now=5.0):
        outgoing.answered(each, Meaning.AGAIN, 5.0)
    assert outgoing.again > 5.0
    assert sent(outgoing, now=5.0) == []
    assert sent(outgoing, now=outgoing.again) == batches[1:6]


@pytest.mark.parametrize("code", [-1, 2, 10, 22, 29, 48, 49, 59, 87, 120, 9999])
def test_a_code_that_is_not_known_to_be_harmless_fails_the_slot(code: int) -> None:
    assert meaning_of(code) is Meaning.FAIL


@pytest.mark.parametrize(
    ("code", "meaning"), [(0, "written"), (46, "written"), (6, "moved"), (19, "again"), (90, "fenced")]
)
def test_known_codes(code: int, meaning: str) -> None:
    assert meaning_of(code).value == meaning
