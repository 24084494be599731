"""Scripts about taking over ids, and about group offsets: receipts and claims."""

from collections.abc import Callable

from onceward.sinks.kafka.control.transactions import State
from tests.integration.kafka_model_contract.stage import Stage

__all__ = ["ID_AND_GROUP_SCRIPTS"]


def init_with_the_old_producer_aborts_all_the_same(stage: Stage) -> None:
    out = stage.topic()
    ours = stage.writer().write(out, b"a").receipt(7, "token").ids
    stage.initialise(ours)
    stage.describe()
    stage.receipt()
    stage.look(out)
    stage.end(ours, commit=True)


def init_with_known_and_unknown_producers(stage: Stage) -> None:
    given = stage.initialise((stage.name("t"), -1, -1))
    name, producer, epoch = given
    stage.initialise(given)
    stage.initialise(given)
    stage.initialise((name, producer + 1_000_000, epoch))
    stage.initialise((name, producer, epoch + 5))
    stage.fence()
    stage.initialise(given)
    stage.describe()


def init_after_ends(stage: Stage) -> None:
    out = stage.topic()
    for commit in (True, False):
        ours = stage.writer().write(out, b"a").ids
        stage.end(ours, commit=commit)
        stage.initialise(ours)
        stage.initialise(ours)
        stage.describe()
    ours = stage.writer(timeout_ms=1_000).write(out, b"a").ids
    stage.await_state(State.COMPLETE_ABORT)
    stage.initialise(ours)
    stage.describe()


def init_with_the_producer_before_the_last_one(stage: Stage) -> None:
    """After a time-out: does the broker still treat it as a repeated earlier request?"""
    out = stage.topic()
    first = stage.initialise((stage.name("t"), -1, -1), timeout_ms=1_000)
    second = stage.initialise(first, timeout_ms=1_000)
    stage.add_partition(second, out)
    stage.await_state(State.COMPLETE_ABORT)
    stage.initialise(first)
    stage.initialise(second)
    stage.describe()


def timeouts_at_init(stage: Stage) -> None:
    for timeout_ms in (900_001, 0, -1, 1, 900_000):
        stage.initialise((stage.name("t"), -1, -1), timeout_ms=timeout_ms)
        stage.describe()


def the_group_is_deleted_while_a_receipt_is_pending(stage: Stage) -> None:
    out = stage.topic()
    ours = stage.writer().write(out, b"a").receipt(7, "token").ids
    stage.receipt()
    stage.delete_group()
    stage.receipt()
    stage.end(ours, commit=True)
    stage.receipt()
    stage.describe()
    stage.look(out)


def the_group_is_deleted_while_its_second_receipt_is_pending(stage: Stage) -> None:
    stage.writer().receipt(7, "first")
    stage.end(stage.ids(), commit=True)
    second = stage.writer().receipt(8, "second").ids
    stage.delete_group()
    stage.receipt()
    stage.end(second, commit=True)
    stage.receipt()


def the_group_is_deleted_after_the_commit(stage: Stage) -> None:
    out = stage.topic()
    ours = stage.writer().write(out, b"a").receipt(7, "token").ids
    stage.end(ours, commit=True)
    stage.delete_group()
    stage.receipt()
    stage.end(ours, commit=True)
    stage.delete_group()
    stage.writer().receipt(8, "second")
    stage.end(stage.ids(), commit=True)
    stage.receipt()


def the_group_is_deleted_after_the_abort(stage: Stage) -> None:
    ours = stage.writer().receipt(7, "token").ids
    stage.end(ours, commit=False)
    stage.delete_group()
    stage.delete_group("unknown")


def a_receipt_without_records(stage: Stage) -> None:
    ours = stage.writer().receipt(7, "token").ids
    stage.describe()
    stage.end(ours, commit=True)
    stage.receipt()
    stage.end(ours, commit=True)
    stage.describe()


def a_receipt_written_twice(stage: Stage) -> None:
    ours = stage.writer().receipt(7, "first").receipt(6, "second").ids
    stage.end(ours, commit=True)
    stage.receipt()


def receipts_and_plain_offsets(stage: Stage) -> None:
    ours = stage.writer().receipt(7, "first").ids
    stage.plain_offset(5, "plain, written while one is pending")
    stage.receipt()
    stage.end(ours, commit=True)
    stage.receipt()
    stage.plain_offset(3, "plain, written after")
    stage.receipt()


def groups_come_and_go(stage: Stage) -> None:
    names = ("a", "b", "claim", "never")
    stage.plain_offset(0, "plain", group="claim")
    stage.groups(*names)
    pending = [stage.writer(who).receipt(7, "token").ids for who in ("a", "b")]
    stage.groups(*names)
    for ids, commit in zip(pending, (True, False), strict=True):
        stage.end(ids, commit=commit)
    stage.groups("a", "claim", "never")
    stage.delete_group("a")
    stage.groups("a", "claim", "never")


def a_claim(stage: Stage) -> None:
    stage.receipt("claim")
    stage.plain_offset(0, '{"settled":0}', group="claim")
    stage.receipt("claim")
    stage.plain_offset(4, '{"settled":4}', group="claim")
    stage.plain_offset(2, '{"settled":2}', group="claim")
    stage.receipt("claim")
    stage.delete_group("claim")
    stage.receipt("claim")


ID_AND_GROUP_SCRIPTS: tuple[Callable[[Stage], None], ...] = (
    init_with_the_old_producer_aborts_all_the_same,
    init_with_known_and_unknown_producers,
    init_after_ends,
    init_with_the_producer_before_the_last_one,
    timeouts_at_init,
    the_group_is_deleted_while_a_receipt_is_pending,
    the_group_is_deleted_while_its_second_receipt_is_pending,
    the_group_is_deleted_after_the_commit,
    the_group_is_deleted_after_the_abort,
    a_receipt_without_records,
    a_receipt_written_twice,
    receipts_and_plain_offsets,
    groups_come_and_go,
    a_claim,
)
