"""What is played in both worlds. Each script is about one thing that a broker could answer otherwise than we think."""

from collections.abc import Callable

from sinks.kafka.transactions import State
from tests.simulation.kafka.contract.stage import Stage

__all__ = ["SCRIPTS", "Script"]

Script = Callable[[Stage], None]


def commit_by_another_process(stage: Stage) -> None:
    out = stage.topic()
    ours = stage.writer().write(out, b"a", b"b").receipt(7, "token").ids
    stage.describe()
    stage.receipt()
    stage.look(out)
    stage.end(ours, commit=True)
    stage.describe()
    stage.receipt()
    stage.look(out)
    stage.end(ours, commit=True)
    stage.end(ours, commit=False)
    stage.end(ours, commit=True, version=9 - stage.version)
    stage.end(ours, commit=True)
    stage.describe()


def abort_by_another_process(stage: Stage) -> None:
    out = stage.topic()
    ours = stage.writer().write(out, b"a", b"b").receipt(7, "token").ids
    stage.end(ours, commit=False)
    stage.describe()
    stage.receipt()
    stage.look(out)
    stage.end(ours, commit=False)
    stage.end(ours, commit=True)
    stage.end(ours, commit=True, version=9 - stage.version)
    stage.describe()


def abort_after_commit_by_the_other_version(stage: Stage) -> None:
    out = stage.topic()
    ours = stage.writer().write(out, b"a").ids
    stage.end(ours, commit=True)
    stage.end(ours, commit=False, version=9 - stage.version)
    stage.describe()
    stage.end(ours, commit=True)
    stage.look(out)


def timeout(stage: Stage) -> None:
    out = stage.topic()
    ours = stage.writer(timeout_ms=1_000).write(out, b"a").receipt(7, "token").ids
    stage.await_state(State.COMPLETE_ABORT)
    stage.describe()
    stage.end(ours, commit=True)
    stage.end(ours, commit=False)
    stage.end(ours, commit=True, version=9 - stage.version)
    stage.describe()
    stage.receipt()
    stage.look(out)
    stage.fence()
    stage.describe()


def fence_of_an_open_transaction(stage: Stage) -> None:
    out = stage.topic()
    ours = stage.writer().write(out, b"a").receipt(7, "token").ids
    stage.fence()
    stage.describe()
    stage.receipt()
    stage.look(out)
    stage.end(ours, commit=True)
    stage.end(ours, commit=False)
    stage.fence()
    stage.describe()


def fence_of_a_committed_transaction(stage: Stage) -> None:
    out = stage.topic()
    ours = stage.writer().write(out, b"a").receipt(7, "token").ids
    stage.end(ours, commit=True)
    stage.fence()
    stage.describe()
    stage.receipt()
    stage.end(ours, commit=True)
    stage.look(out)


def fence_of_an_unknown_id(stage: Stage) -> None:
    stage.describe()
    stage.fence()
    stage.describe()
    stage.fence()
    stage.describe()


def an_unknown_id(stage: Stage) -> None:
    nobody = (stage.name("nobody"), 0, 0)
    stage.end(nobody, commit=True)
    stage.end(nobody, commit=False)
    stage.end(nobody, commit=False, version=1)
    stage.describe("nobody")
    stage.receipt("nobody")


def an_empty_transaction(stage: Stage) -> None:
    ours = stage.writer().ids
    stage.describe()
    stage.end(ours, commit=True)
    stage.end(ours, commit=False)
    stage.describe()
    stage.end(ours, commit=True)
    stage.end(ours, commit=False)
    stage.end(stage.ids(), commit=False)
    stage.describe()


def wrong_producers(stage: Stage) -> None:
    out = stage.topic()
    name, producer, epoch = stage.writer().write(out, b"a").ids
    for commit in (True, False):
        for version in (4, 5, 1):
            stage.end((name, producer, epoch + 1), commit=commit, version=version)
            stage.end((name, producer, epoch - 1), commit=commit, version=version)
            stage.end((name, producer + 1_000_000, epoch), commit=commit, version=version)
    stage.describe()
    stage.end((name, producer, epoch), commit=True)
    stage.describe()


def the_id_is_used_again_after_a_commit(stage: Stage) -> None:
    out = stage.topic()
    first = stage.writer().write(out, b"a").receipt(7, "first").ids
    stage.end(first, commit=True)
    second = stage.writer()
    stage.describe()
    stage.end(first, commit=True)
    stage.receipt()
    second.write(out, b"b").receipt(8, "second")
    stage.describe()
    stage.receipt()
    stage.end(first, commit=True)
    stage.end(first, commit=False)
    stage.describe()
    stage.end(second.ids, commit=False)
    stage.describe()
    stage.receipt()
    stage.end(first, commit=True)
    stage.look(out)


def the_id_commits_twice(stage: Stage) -> None:
    out = stage.topic()
    first = stage.writer().write(out, b"a").receipt(7, "first").ids
    stage.end(first, commit=True)
    second = stage.writer().write(out, b"b").receipt(8, "second").ids
    stage.end(second, commit=True)
    stage.receipt()
    stage.end(first, commit=True)
    stage.end(second, commit=True)
    stage.look(out)


def the_id_is_taken_over_while_open(stage: Stage) -> None:
    out = stage.topic()
    first = stage.writer().write(out, b"a").receipt(7, "first")
    ours = first.ids
    second = stage.writer().write(out, b"b")
    stage.describe()
    first.write(out, b"c")
    stage.end(ours, commit=True)
    stage.end(ours, commit=False)
    stage.describe()
    stage.end(second.ids, commit=True)
    stage.receipt()
    stage.look(out)


def a_lost_slot_whose_id_is_left_open(stage: Stage) -> None:
    out = stage.topic()
    first = stage.writer().write(out, b"a").receipt(7, "first").ids
    stage.end(first, commit=True)
    stage.writer().write(out, b"b").receipt(8, "second")
    stage.receipt()
    stage.fence()
    stage.receipt()
    stage.describe()


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
    """After a time-out: whether the broker still takes it for the repetition of an earlier request."""
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
    stage.delete_group("nobody")


def lists_in_each_state(stage: Stage) -> None:
    out = stage.topic()

    def listed() -> None:
        stage.listed()
        for state in ("Ongoing", "CompleteCommit", "CompleteAbort", "Empty"):
            stage.listed(state)

    listed()
    writers = [stage.writer(name).write(out, b"x") for name in ("a", "b", "c")]
    stage.fence("d")
    listed()
    stage.end(writers[0].ids, commit=True)
    stage.end(writers[1].ids, commit=False)
    listed()
    stage.fence("c")
    listed()
    stage.listed("Ongoing", "Empty")
    stage.listed("NoSuchState")


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


def a_zombie_goes_on_after_the_commit(stage: Stage) -> None:
    out = stage.topic()
    zombie = stage.writer().write(out, b"a")
    ours = zombie.ids
    stage.end(ours, commit=True)
    zombie.write(out, b"b")
    stage.describe()
    stage.look(out)
    stage.end(ours, commit=True)


def a_zombie_sends_its_receipt_after_the_commit(stage: Stage) -> None:
    out = stage.topic()
    zombie = stage.writer().write(out, b"a").receipt(7, "token")
    ours = zombie.ids
    stage.end(ours, commit=True)
    stage.fence()
    zombie.receipt(8, "late")
    stage.receipt()
    stage.describe()


def a_client_aborts_itself(stage: Stage) -> None:
    out = stage.topic()
    writer = stage.writer().write(out, b"a").receipt(7, "token")
    ours = writer.ids
    writer.abort()
    stage.describe()
    stage.receipt()
    stage.end(ours, commit=True)
    stage.describe()


def a_client_aborts_what_is_committed(stage: Stage) -> None:
    out = stage.topic()
    writer = stage.writer().write(out, b"a")
    ours = writer.ids
    stage.end(ours, commit=True)
    writer.abort()
    stage.describe()
    stage.end(ours, commit=True)
    stage.look(out)


def two_transactions_hold_each_other_back(stage: Stage) -> None:
    out = stage.topic(partitions=2)
    older = stage.writer("a").write(out, b"a0").write(out, b"a1", partition=1)
    younger = stage.writer("b").write(out, b"b0").write(out, b"b1", partition=1)
    stage.look(out)
    stage.end(younger.ids, commit=True)
    stage.look(out)
    older.write(out, b"a2")
    stage.describe("a")
    stage.end(older.ids, commit=False)
    stage.look(out)


def raw_requests_of_an_older_client(stage: Stage) -> None:
    out = stage.topic(partitions=2)
    given = stage.initialise((stage.name("t"), -1, -1))
    stage.produce(given, out, [b"a"], 0)
    stage.describe()
    stage.add_partition(given, out)
    stage.describe()
    stage.produce(given, out, [b"a", b"b"], 0)
    stage.produce(given, out, [b"a", b"b"], 0)
    stage.produce(given, out, [b"d"], 3)
    stage.produce(given, out, [b"c"], 2)
    stage.produce(given, out, [b"a"], 0, partition=1)
    stage.commit_offset(given, 7, "token")
    stage.add_offsets(given)
    stage.commit_offset(given, 7, "token")
    stage.describe()
    stage.end(given, commit=True)
    stage.look(out)
    stage.receipt()


def late_requests_of_an_older_client(stage: Stage) -> None:
    """Repeated and first arrivals after the end, with the epoch of the transaction."""
    out = stage.topic(partitions=2)
    given = stage.initialise((stage.name("t"), -1, -1))
    stage.add_partition(given, out)
    stage.add_partition(given, out, 1)
    stage.add_offsets(given)
    stage.produce(given, out, [b"a"], 0)
    stage.commit_offset(given, 7, "token")
    stage.end(given, commit=True)
    stage.produce(given, out, [b"a"], 0)
    stage.produce(given, out, [b"b"], 1)
    stage.produce(given, out, [b"c"], 0, partition=1)
    stage.commit_offset(given, 8, "late")
    stage.describe()
    stage.receipt()
    stage.look(out)
    stage.fence()
    stage.produce(given, out, [b"d"], 1)
    stage.commit_offset(given, 9, "later")
    stage.add_partition(given, out)
    stage.add_offsets(given)
    stage.look(out)


def a_late_enlisting_opens_a_transaction_where_the_epoch_stayed(stage: Stage) -> None:
    out = stage.topic()
    given = stage.initialise((stage.name("t"), -1, -1))
    stage.add_partition(given, out)
    stage.produce(given, out, [b"a"], 0)
    stage.end(given, commit=True)
    stage.add_partition(given, out)
    stage.describe()
    stage.end(given, commit=True)
    stage.end(given, commit=False)
    stage.describe()
    stage.look(out)


def a_late_enlisting_after_an_abort_makes_commit_a_lie_where_the_epoch_stayed(stage: Stage) -> None:
    out = stage.topic()
    given = stage.initialise((stage.name("t"), -1, -1))
    stage.add_partition(given, out)
    stage.produce(given, out, [b"a"], 0)
    stage.end(given, commit=False)
    stage.add_partition(given, out)
    stage.describe()
    stage.end(given, commit=True)
    stage.describe()
    stage.look(out)


def a_late_fence_and_a_late_end(stage: Stage) -> None:
    """Repeated after the id was taken again and something new is open under it."""
    out = stage.topic()
    first = stage.writer().write(out, b"a").ids
    stage.end(first, commit=True)
    writer = stage.writer().write(out, b"b")
    second = writer.ids
    for commit in (True, False):
        for version in (4, 5):
            stage.end(first, commit=commit, version=version)
    stage.describe()
    stage.initialise(first)
    stage.describe()
    stage.fence()
    writer.write(out, b"c")
    stage.end(second, commit=True)
    stage.describe()
    stage.look(out)


def a_topic_is_written_in_two_transactions_of_one_id_that_are_aborted_and_committed(stage: Stage) -> None:
    out = stage.topic()
    for number, commit in enumerate((False, True, False, True)):
        ours = stage.writer().write(out, b"%d" % number).receipt(number, f"token {number}").ids
        stage.end(ours, commit=commit)
        stage.receipt()
    stage.look(out)


def raw_requests_of_a_newer_client(stage: Stage) -> None:
    """That enlists by writing: only where transactions raise the epoch."""
    out = stage.topic(partitions=2)
    given = stage.initialise((stage.name("t"), -1, -1))
    stage.produce(given, out, [b"a"], 0, implicit=True)
    stage.describe()
    stage.produce(given, out, [b"a"], 0, implicit=True)
    stage.produce(given, out, [b"b"], 1, implicit=True)
    stage.produce(given, out, [b"c"], 0, partition=1, implicit=True)
    stage.commit_offset(given, 7, "token", implicit=True)
    stage.describe()
    stage.end(given, commit=True, version=5)
    stage.receipt()
    stage.look(out)
    stage.produce(given, out, [b"a"], 0, implicit=True)
    stage.produce(given, out, [b"d"], 2, implicit=True)
    stage.commit_offset(given, 8, "late", implicit=True)
    stage.describe()
    raised = (given[0], given[1], given[2] + 1)
    stage.produce(raised, out, [b"e"], 0, implicit=True)
    stage.describe()
    stage.end(raised, commit=False, version=5)
    stage.end(given, commit=True, version=5)
    stage.look(out)


def a_stranger_writes_to_the_partition(stage: Stage) -> None:
    out = stage.topic()
    given = stage.initialise((stage.name("t"), -1, -1))
    name, producer, epoch = given
    stage.add_partition(given, out)
    stage.add_partition((name, producer + 1_000_000, epoch), out)
    stage.add_partition((name, producer, epoch + 1), out)
    stage.add_partition((stage.name("nobody"), producer, epoch), out)
    stage.add_offsets((name, producer, epoch + 1))
    stage.produce((name, producer + 1_000_000, epoch), out, [b"x"], 0)
    stage.produce((name, producer, epoch + 1), out, [b"x"], 0)
    stage.produce((stage.name("nobody"), producer, epoch), out, [b"x"], 0)
    stage.produce(given, out, [b"a"], 5)
    stage.produce(given, out, [b"a"], 0)
    stage.look(out)


def a_first_batch_with_a_gap(stage: Stage) -> None:
    out = stage.topic(partitions=3)
    given = stage.initialise((stage.name("t"), -1, -1))
    for partition in (0, 1, 2):
        stage.add_partition(given, out, partition)
    stage.produce(given, out, [b"b"], 5)
    stage.produce(given, out, [b"a"], 0)
    stage.produce(given, out, [b"c"], 6)
    stage.produce(given, out, [b"a"], 0, partition=1)
    stage.end(given, commit=True)
    again = stage.initialise((stage.name("t"), -1, -1))
    for partition in (0, 1, 2):
        stage.add_partition(again, out, partition)
        stage.produce(again, out, [b"d"], 1, partition=partition)
        stage.produce(again, out, [b"d"], 0, partition=partition)
    stage.look(out)


def receipts_and_plain_offsets(stage: Stage) -> None:
    ours = stage.writer().receipt(7, "first").ids
    stage.plain_offset(5, "plain, written while one is pending")
    stage.receipt()
    stage.end(ours, commit=True)
    stage.receipt()
    stage.plain_offset(3, "plain, written after")
    stage.receipt()


def a_claim(stage: Stage) -> None:
    stage.receipt("claim")
    stage.plain_offset(0, '{"settled":0}', group="claim")
    stage.receipt("claim")
    stage.plain_offset(4, '{"settled":4}', group="claim")
    stage.plain_offset(2, '{"settled":2}', group="claim")
    stage.receipt("claim")
    stage.delete_group("claim")
    stage.receipt("claim")


SCRIPTS: tuple[Script, ...] = (
    commit_by_another_process,
    abort_by_another_process,
    abort_after_commit_by_the_other_version,
    timeout,
    fence_of_an_open_transaction,
    fence_of_a_committed_transaction,
    fence_of_an_unknown_id,
    an_unknown_id,
    an_empty_transaction,
    wrong_producers,
    the_id_is_used_again_after_a_commit,
    the_id_commits_twice,
    the_id_is_taken_over_while_open,
    a_lost_slot_whose_id_is_left_open,
    init_with_the_old_producer_aborts_all_the_same,
    init_with_known_and_unknown_producers,
    init_after_ends,
    init_with_the_producer_before_the_last_one,
    timeouts_at_init,
    the_group_is_deleted_while_a_receipt_is_pending,
    the_group_is_deleted_after_the_commit,
    the_group_is_deleted_after_the_abort,
    lists_in_each_state,
    a_receipt_without_records,
    a_receipt_written_twice,
    a_zombie_goes_on_after_the_commit,
    a_zombie_sends_its_receipt_after_the_commit,
    a_client_aborts_itself,
    a_client_aborts_what_is_committed,
    two_transactions_hold_each_other_back,
    raw_requests_of_an_older_client,
    late_requests_of_an_older_client,
    a_late_enlisting_opens_a_transaction_where_the_epoch_stayed,
    a_late_enlisting_after_an_abort_makes_commit_a_lie_where_the_epoch_stayed,
    a_late_fence_and_a_late_end,
    a_topic_is_written_in_two_transactions_of_one_id_that_are_aborted_and_committed,
    raw_requests_of_a_newer_client,
    a_stranger_writes_to_the_partition,
    a_first_batch_with_a_gap,
    receipts_and_plain_offsets,
    a_claim,
)
