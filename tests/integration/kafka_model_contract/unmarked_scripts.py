"""Scripts of ends without markers: Kafka 4.3 skips the marker of a partition that has no leader."""

from collections.abc import Callable, Sequence

from tests.integration.kafka_model_contract.sides import Ids
from tests.integration.kafka_model_contract.stage import Stage

__all__ = ["LOST_GROUPS", "UNMARKED_SCRIPTS"]

LOST_GROUPS = ("a", "e")
"""Short names of the groups that lose their coordinator with the output's leaders: one's offsets are committed, the
other's are aborted. Their hashes are equal modulo 4, so the same one of four partitions keeps both."""


def a_further_transaction_over_the_same_partitions_decides(stage: Stage) -> None:
    """Whatever was decided before, and although it writes nothing."""
    out = stage.topic(partitions=4)
    ended = [_written(stage, str(number), out, number) for number in range(4)]
    stage.lose_leaders(out)
    for number, ids in enumerate(ended):
        stage.end(ids, commit=number < 2)
    stage.regain_leaders(out)
    _seen(stage, out, range(4))
    for number, ids in enumerate(ended):
        stage.end(ids, commit=number < 2)
    stage.held(out)
    for number in range(4):
        again = stage.initialise((ended[number][0], -1, -1))
        stage.add_partition(again, out, number)
        stage.end(again, commit=number % 2 == 0)
    _seen(stage, out, range(4))


def a_further_transaction_begins_at_the_reported_pair(stage: Stage) -> None:
    """Without InitProducerId, which aborts what is open if it arrives again, whatever epoch it names."""
    out = stage.topic(partitions=4)
    ended = [_written(stage, str(number), out, number) for number in range(4)]
    stage.lose_leaders(out)
    for number, ids in enumerate(ended):
        stage.end(ids, commit=number != 1)
    stage.regain_leaders(out)
    for number in range(3):
        again = stage.ids(str(number))
        stage.add_partition(again, out, number)
        stage.end(again, commit=number != 1)
    reported = stage.ids("3")
    again = stage.initialise(reported)
    stage.add_partition(again, out, 3)
    stage.initialise(reported)
    _seen(stage, out, range(4))


def a_further_transaction_that_writes_joins_what_hangs(stage: Stage) -> None:
    """So its end decides about both: an abort loses what is committed, a commit shows what is aborted."""
    out = stage.topic(partitions=3)
    ended = [_written(stage, str(number), out, number) for number in range(3)]
    stage.lose_leaders(out)
    stage.end(ended[0], commit=True)
    stage.end(ended[1], commit=False)
    stage.fence("2")
    stage.regain_leaders(out)
    _seen(stage, out, range(3))
    for number in range(3):
        again = _written(stage, str(number), out, number, b"b")
        stage.held(out)
        stage.produce(again, out, [b"c"], 1, partition=number)
        stage.held(out)
        stage.end(again, commit=number > 0)
    _seen(stage, out, range(3))


def a_further_transaction_elsewhere_leaves_it_hanging(stage: Stage) -> None:
    """The same pair may also be named when the id is taken over, as long as nothing else has happened to it."""
    out = stage.topic(partitions=2)
    first = _written(stage, "t", out, 0)
    stage.lose_leaders(out)
    stage.end(first, commit=True)
    stage.regain_leaders(out)
    second = _written(stage, "t", out, 1, b"b")
    stage.end(second, commit=False)
    _seen(stage, out, [0])
    stage.initialise(first)
    third = stage.initialise(stage.ids("t"))
    stage.add_partition(third, out, 0)
    stage.end(third, commit=True)
    _seen(stage, out, [0])


def a_pending_offset_hangs_until_its_group_is_added_again(stage: Stage) -> None:
    out = stage.topic(partitions=2)
    ended: list[Ids] = []
    for number, name in enumerate(LOST_GROUPS):
        ids = _written(stage, name, out, number)
        stage.add_offsets(ids, name)
        stage.commit_offset(ids, 7, "token", group=name)
        ended.append(ids)
    stage.lose_leaders(out)
    for number, ids in enumerate(ended):
        stage.end(ids, commit=number == 0)
    stage.regain_leaders(out)
    for number, name in enumerate(LOST_GROUPS):
        stage.describe(name)
        stage.receipt(name)
        again = stage.initialise((ended[number][0], -1, -1))
        stage.add_partition(again, out, number)
        stage.end(again, commit=number == 0)
        stage.receipt(name)
        stage.plain_offset(8, "plain", group=name)
        stage.receipt(name)
        again = stage.initialise(stage.ids(name))
        stage.add_offsets(again, name)
        stage.end(again, commit=number == 0)
        stage.receipt(name)
    stage.look(out)


def a_tool_ends_what_hangs(stage: Stage) -> None:
    out = stage.topic()
    ids = _written(stage, "t", out, 0)
    stage.lose_leaders(out)
    stage.end(ids, commit=True)
    stage.regain_leaders(out)
    stage.held(out)
    stage.abort_one_partition(ids, out)
    stage.held(out)
    stage.describe()
    stage.look(out)


def _written(stage: Stage, who: str, out: str, partition: int, value: bytes = b"a") -> Ids:
    """A transaction with one record."""
    ids = stage.initialise((stage.name(who), -1, -1))
    stage.add_partition(ids, out, partition)
    stage.produce(ids, out, [value], 0, partition=partition)
    return ids


def _seen(stage: Stage, out: str, who: Sequence[int]) -> None:
    for each in who:
        stage.describe("t" if len(who) == 1 else str(each))
    stage.held(out)
    stage.look(out)


UNMARKED_SCRIPTS: tuple[Callable[[Stage], None], ...] = (
    a_further_transaction_over_the_same_partitions_decides,
    a_further_transaction_begins_at_the_reported_pair,
    a_further_transaction_that_writes_joins_what_hangs,
    a_further_transaction_elsewhere_leaves_it_hanging,
    a_pending_offset_hangs_until_its_group_is_added_again,
    a_tool_ends_what_hangs,
)
