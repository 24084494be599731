import pytest

from onceward.common.errors import CheckpointFailedError
from onceward.connectors.tasks import Ballot, CheckpointTask, Vote, check_ballots


def vote(slot: int) -> Vote:
    return Vote(slot=slot, attempt=slot, records=1, bytes=1)


def ballots(*slots: int) -> list[str]:
    return [Ballot({"out": vote(slot)}).to_json() for slot in slots]


def test_votes_are_ordered_by_slot() -> None:
    assert [one.slot for one in check_ballots(ballots(2, 0, 1), ["out"], 3)["out"]] == [0, 1, 2]


def test_the_votes_for_each_sink_are_kept_apart() -> None:
    both = [Ballot({"a": vote(slot), "b": Vote(slot=slot, attempt=slot, records=5, bytes=5)}) for slot in (1, 0)]
    votes = check_ballots([each.to_json() for each in both], ["a", "b"], 2)
    assert [(one.slot, one.records) for one in votes["a"]] == [(0, 1), (1, 1)]
    assert [(one.slot, one.records) for one in votes["b"]] == [(0, 5), (1, 5)]


@pytest.mark.parametrize("expected", [2, None])
def test_a_task_that_has_not_voted_for_a_sink_fails_the_checkpoint(expected: int | None) -> None:
    texts = [Ballot({"a": vote(0), "b": vote(0)}).to_json(), Ballot({"a": vote(1)}).to_json()]
    with pytest.raises(CheckpointFailedError, match="for sink b of slots \\[0\\], wanted 2"):
        check_ballots(texts, ["a", "b"], expected)


def test_no_slot_at_all_is_legal_where_spark_chooses_their_number() -> None:
    assert check_ballots([], ["out"], None) == {"out": ()}


@pytest.mark.parametrize("slots", [(0, 2), (1, 2), (0, 0), (0, 1, 1)])
def test_a_missing_or_doubled_slot_fails_the_checkpoint(slots: tuple[int, ...]) -> None:
    with pytest.raises(CheckpointFailedError, match="are written again"):
        check_ballots(ballots(*slots), ["out"], None)


def test_fewer_slots_than_the_plan_has_partitions_fail_the_checkpoint() -> None:
    with pytest.raises(CheckpointFailedError, match="wanted 3"):
        check_ballots(ballots(0, 1), ["out"], 3)


def test_the_times_of_a_task_are_counted_once_whatever_number_of_sinks_it_writes() -> None:
    measured = Ballot({"a": vote(0), "b": vote(0)}).measured({"read": 0.5}, 0.25)
    assert [(one.steps, one.held) for one in measured.votes.values()] == [({"read": 0.5}, 0.25), ({}, 0.0)]


def test_a_task_and_a_ballot_survive_the_way_to_an_executor_and_back() -> None:
    task = CheckpointTask(
        job="a",
        generation=1,
        checkpoint=2,
        splits=({"topic": "t"}, {"topic": "u"}),
        columns=("key",),
        sinks={"out": {}, "more": {"ids": 3}},
    )
    ballot = Ballot({"out": Vote(slot=1, attempt=7, records=3, bytes=9, body={"id": "x"}), "more": vote(1)})
    assert CheckpointTask.from_json(task.to_json()) == task
    assert Ballot.from_json(ballot.to_json()) == ballot
