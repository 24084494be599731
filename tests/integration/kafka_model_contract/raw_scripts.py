"""Scripts of single requests as client libraries send them: out of order, late, repeated, and from strangers."""

from collections.abc import Callable

from tests.integration.kafka_model_contract.stage import Stage

__all__ = ["RAW_SCRIPTS"]


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


def a_partition_that_a_tool_aborts(stage: Stage) -> None:
    """The coordinator does not know, and answers the commit as usual."""
    out = stage.topic(partitions=2)
    given = stage.writer().write(out, b"a", b"b").write(out, b"c", partition=1).receipt(7, "token").ids
    stage.held(out)
    stage.abort_one_partition(given, out, 1)
    stage.held(out)
    stage.describe()
    stage.end(given, commit=True)
    stage.held(out)
    stage.describe()
    stage.receipt()
    stage.look(out)


def a_partition_that_a_tool_aborts_while_it_is_written(stage: Stage) -> None:
    """What is written afterwards starts a span of its own, and sequences continue."""
    out = stage.topic()
    given = stage.initialise((stage.name("t"), -1, -1))
    stage.add_partition(given, out)
    stage.produce(given, out, [b"a", b"b"], 0)
    stage.abort_one_partition(given, out)
    stage.held(out)
    stage.produce(given, out, [b"c"], 2)
    stage.held(out)
    stage.end(given, commit=True)
    stage.look(out)


def late_requests_of_an_older_client(stage: Stage) -> None:
    """Repeated and first arrivals after the end, with the transaction's epoch."""
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
    """Repeated after the id was taken over again and a new transaction is open under it."""
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
    """This client enlists by writing; possible only where transactions raise the epoch."""
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
    stage.add_partition((stage.name("unknown"), producer, epoch), out)
    stage.add_offsets((name, producer, epoch + 1))
    stage.produce((name, producer + 1_000_000, epoch), out, [b"x"], 0)
    stage.produce((name, producer, epoch + 1), out, [b"x"], 0)
    stage.produce((stage.name("unknown"), producer, epoch), out, [b"x"], 0)
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


RAW_SCRIPTS: tuple[Callable[[Stage], None], ...] = (
    raw_requests_of_an_older_client,
    a_partition_that_a_tool_aborts,
    a_partition_that_a_tool_aborts_while_it_is_written,
    late_requests_of_an_older_client,
    a_late_enlisting_opens_a_transaction_where_the_epoch_stayed,
    a_late_enlisting_after_an_abort_makes_commit_a_lie_where_the_epoch_stayed,
    a_late_fence_and_a_late_end,
    a_topic_is_written_in_two_transactions_of_one_id_that_are_aborted_and_committed,
    raw_requests_of_a_newer_client,
    a_stranger_writes_to_the_partition,
    a_first_batch_with_a_gap,
)
