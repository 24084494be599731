"""Scripts that are played on both sides. Each is about one thing that a broker might answer differently than
expected."""

from collections.abc import Callable

from onceward.sinks.kafka.control.transactions import State
from tests.integration.kafka_model_contract.id_and_group_scripts import ID_AND_GROUP_SCRIPTS
from tests.integration.kafka_model_contract.raw_scripts import RAW_SCRIPTS
from tests.integration.kafka_model_contract.stage import Stage

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
    unknown = (stage.name("unknown"), 0, 0)
    stage.end(unknown, commit=True)
    stage.end(unknown, commit=False)
    stage.end(unknown, commit=False, version=1)
    stage.describe("unknown")
    stage.receipt("unknown")


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


SCRIPTS: tuple[Script, ...] = (
    *RAW_SCRIPTS,
    *ID_AND_GROUP_SCRIPTS,
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
    lists_in_each_state,
    a_zombie_goes_on_after_the_commit,
    a_zombie_sends_its_receipt_after_the_commit,
    a_client_aborts_itself,
    a_client_aborts_what_is_committed,
    two_transactions_hold_each_other_back,
)
