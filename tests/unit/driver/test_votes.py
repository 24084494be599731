import pytest

from onceward.common.errors import CheckpointFailedError
from onceward.connectors.tasks import CheckpointTask, Vote, check_votes


def ballots(*slots: int) -> list[str]:
    return [Vote(slot=slot, attempt=slot, records=1, bytes=1).to_json() for slot in slots]


def test_votes_are_ordered_by_slot() -> None:
    assert [vote.slot for vote in check_votes(ballots(2, 0, 1), 3)] == [0, 1, 2]


def test_no_slot_at_all_is_legal_where_spark_chooses_their_number() -> None:
    assert check_votes([], None) == ()


@pytest.mark.parametrize("slots", [(0, 2), (1, 2), (0, 0), (0, 1, 1)])
def test_a_missing_or_doubled_slot_fails_the_checkpoint(slots: tuple[int, ...]) -> None:
    with pytest.raises(CheckpointFailedError, match="are written again"):
        check_votes(ballots(*slots), None)


def test_fewer_slots_than_the_plan_has_partitions_fail_the_checkpoint() -> None:
    with pytest.raises(CheckpointFailedError, match="0 to 2"):
        check_votes(ballots(0, 1), 3)


def test_a_task_and_a_vote_survive_the_way_to_an_executor_and_back() -> None:
    task = CheckpointTask(
        job="a", generation=1, checkpoint=2, splits=({"topic": "t"}, {"topic": "u"}), columns=("key",), sink="sink"
    )
    vote = Vote(slot=1, attempt=7, records=3, bytes=9, body={"id": "x"})
    assert CheckpointTask.from_json(task.to_json()) == task
    assert Vote.from_json(vote.to_json()) == vote
