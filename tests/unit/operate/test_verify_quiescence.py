"""When a job can be judged: consistent moments of a running job, and input that has changed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import cast

import pytest

from onceward.operate.verify.cluster import ClusterView
from onceward.operate.verify.history import CheckpointReport, History, Lane, Part, PartitionEnd
from onceward.operate.verify.judge import AT_REST, judge
from onceward.operate.verify.quiescence import Job, Look, Moment, deleted, steady_moment, unusable_input
from onceward.operate.verify.streams import ranges

IN, OUT = Lane("in", 0), Lane("out", 0)
FIRST = CheckpointReport(1, 0, 1, "checkpoint", "settled", {IN: 0})
SECOND = CheckpointReport(2, 1, 1, "checkpoint", "settled", {IN: 10})
THIRD = CheckpointReport(3, 2, 1, "checkpoint", "completed", {IN: 20})


class Cluster:
    """Give the set answers one after the other, then repeat the last one."""

    def __init__(
        self,
        *,
        ends: Sequence[tuple[int, int]] = ((12, 12),),
        open_ids: Sequence[Sequence[str]] = ((),),
        beginning: int = 0,
        topic: str = "topic-id",
        compacted: Sequence[str] = (),
    ) -> None:
        self._ends, self._open = list(ends), list(open_ids)
        self._beginning, self._topic, self._compacted = beginning, topic, compacted

    def ends(self, _topics: Sequence[str]) -> list[PartitionEnd]:
        high, stable = self._ends.pop(0) if len(self._ends) > 1 else self._ends[0]
        return [PartitionEnd(OUT, high, stable)]

    def open_transactions(self, job: str) -> Mapping[str, str]:
        found = self._open.pop(0) if len(self._open) > 1 else self._open[0]
        return {f"{job}.{name}": "Ongoing" for name in found}

    def beginnings(self, _topics: Sequence[str]) -> dict[Lane, int]:
        return {IN: self._beginning}

    def identity(self, topics: Sequence[str]) -> tuple[str, Mapping[str, str]]:
        return "cluster-id", dict.fromkeys(topics, self._topic)

    def compacted(self, _topics: Sequence[str]) -> Sequence[str]:
        return self._compacted


def view(cluster: Cluster) -> ClusterView:
    return cast(ClusterView, cluster)


def looks(cluster: Cluster) -> Callable[[], Look]:
    return lambda: Look(ends=cluster.ends(["out"]), open=cluster.open_transactions("job"))


def job(*reports: Sequence[CheckpointReport], running: bool = False, cluster_id: str = "cluster-id") -> Job:
    """A job that gives each answer once, then repeats the last one."""
    answers = list(reports)
    return Job(
        name="job",
        reports=lambda: answers.pop(0) if len(answers) > 1 else answers[0],
        running=lambda: running,
        origin=lambda _: (cluster_id, {"in": "topic-id"}),
    )


def test_a_job_at_rest_is_judged_at_once() -> None:
    moment = steady_moment(job([FIRST, SECOND]), looks(Cluster()), 30)
    assert (moment.newest, dict(moment.gaps)) == (2, {})
    assert all(one.last for one in moment.reports)


def test_a_checkpoint_that_is_completed_between_two_looks_makes_them_worthless() -> None:
    settled = THIRD._replace(state="settled")
    moment = steady_moment(job([FIRST, SECOND], [FIRST, SECOND, settled]), looks(Cluster()), 30)
    assert moment.newest == 3


def test_a_running_job_is_judged_at_a_moment_without_open_transactions() -> None:
    cluster = Cluster(ends=[(14, 12), (16, 16)], open_ids=[["a"], []])
    moment = steady_moment(job([FIRST, SECOND], running=True), looks(cluster), 30)
    assert (moment.ends, moment.open, dict(moment.gaps)) == ([PartitionEnd(OUT, 16, 16)], {}, {})


def test_open_work_of_a_running_job_is_unknown_and_no_breach() -> None:
    cluster = Cluster(ends=[(14, 12)], open_ids=[["a"]])
    moment = steady_moment(job([FIRST, SECOND, THIRD], running=True), looks(cluster), 0)
    assert {part for part, words in moment.gaps.items() if words} == {Part.COORDINATOR, Part.END}
    assert (moment.open, moment.ends) == ({}, [PartitionEnd(OUT, 12, 12)])
    assert [(one.checkpoint, one.last) for one in moment.reports] == [(1, True), (2, True)], "the third is not over"


def test_a_running_jobs_undecided_checkpoint_is_not_judged() -> None:
    pending = THIRD._replace(state="triggered", ends=None)
    moment = steady_moment(job([FIRST, SECOND, pending], running=True), looks(Cluster()), 30)
    assert [one.checkpoint for one in moment.reports] == [1, 2]


def test_a_running_job_that_has_completed_nothing_yet_is_at_rest() -> None:
    pending = FIRST._replace(state="triggered", ends=None)
    moment = steady_moment(job([pending], running=True), looks(Cluster()), 30)
    assert (moment.newest, moment.reports, dict(moment.gaps)) == (0, [], {})


def test_open_work_of_a_job_without_a_driver_is_still_judged() -> None:
    cluster = Cluster(ends=[(14, 12)], open_ids=[["a"]])
    moment = steady_moment(job([FIRST, SECOND, THIRD]), looks(cluster), 0)
    assert (dict(moment.open), dict(moment.gaps)) == ({"job.a": "Ongoing"}, {})
    assert moment.unsettled == [3]


@pytest.mark.parametrize(
    ("cluster", "asked", "words"),
    [
        (Cluster(beginning=5), job([FIRST]), "in-0 is deleted below offset 5"),
        (Cluster(topic="another"), job([FIRST]), "topic in was recreated"),
        (Cluster(compacted=["in"]), job([FIRST]), "topic in may be compacted"),
        (Cluster(), job([FIRST], cluster_id="elsewhere"), "the job reads from cluster elsewhere"),
    ],
    ids=["deleted", "recreated", "compacted", "another cluster"],
)
def test_changed_input_makes_the_verdict_unknown(cluster: Cluster, asked: Job, words: str) -> None:
    reports = [FIRST, SECOND]
    moment = Moment(reports=reports, ends=[], open={}, running=False)
    unusable_input(asked, view(cluster), ["in"], ranges(reports, {}), moment, from_earliest=False)
    (gap,) = moment.gaps[Part.FED]
    assert words in gap


def test_all_topics_that_differ_from_those_the_job_reads_are_named() -> None:
    reports = [FIRST, SECOND]
    moment = Moment(reports=reports, ends=[], open={}, running=False)
    unusable_input(job(reports), view(Cluster()), ["b", "a"], ranges(reports, {}), moment, from_earliest=False)
    assert moment.gaps[Part.FED] == ["the job reads in, named were a, b"]


def test_a_partition_with_an_unknown_start_is_not_called_deleted() -> None:
    assert deleted({}, ranges([FIRST, SECOND], {})) == []


def test_unread_input_may_be_deleted() -> None:
    begun = FIRST._replace(ends={IN: 5})
    moment = Moment(reports=[begun, SECOND], ends=[], open={}, running=False)
    asked = job([begun, SECOND])
    unusable_input(asked, view(Cluster(beginning=5)), ["in"], ranges(moment.reports, {}), moment, from_earliest=False)
    assert not any(moment.gaps.values())


def test_a_start_that_is_no_longer_known_must_be_given() -> None:
    reports = [SECOND]
    for from_earliest, gaps in ((False, 1), (True, 0)):
        moment = Moment(reports=reports, ends=[], open={}, running=False)
        covered = ranges(reports, {})
        unusable_input(job(reports), view(Cluster()), ["in"], covered, moment, from_earliest=from_earliest)
        assert len(moment.gaps[Part.FED]) == gaps
        assert covered.lanes[IN] == [(0, 10, 0)]


LATER = [
    FIRST._replace(ends={IN: 5}),
    CheckpointReport(8, 7, 1, "checkpoint", "settled", {IN: 70}),
    CheckpointReport(9, 8, 1, "checkpoint", "settled", {IN: 80}),
]
"""All but the first positions and the last two is removed."""
BACK = CheckpointReport(10, 3, 2, "restore", "settled", {IN: 30})
AGAIN = CheckpointReport(14, 13, 2, "checkpoint", "settled", {IN: 60})


def test_removed_checkpoints_have_read_from_the_first_positions_on() -> None:
    covered, moment = ranges(LATER, {IN: 0}), Moment(reports=LATER, ends=[], open={}, running=False)
    unusable_input(job(LATER), view(Cluster()), ["in"], covered, moment, from_earliest=False)
    assert not any(moment.gaps.values())
    assert covered.lanes[IN] == [(5, 70, 0), (70, 80, 9)]


def test_checkpoints_that_were_removed_since_a_restore_have_read_from_its_positions_on() -> None:
    reports = [LATER[0], SECOND, BACK, AGAIN]
    covered, moment = ranges(reports, {}), Moment(reports=reports, ends=[], open={}, running=False)
    unusable_input(job(reports), view(Cluster()), ["in"], covered, moment, from_earliest=False)
    assert not any(moment.gaps.values())
    assert covered.lanes[IN] == [(5, 10, 2), (30, 60, 0)]


@pytest.mark.parametrize("from_earliest", [False, True])
def test_a_restore_before_which_checkpoints_are_removed_leaves_the_verdict_unknown(from_earliest: bool) -> None:
    """Among them may be another restore, and what was read twice is not known."""
    reports = [*LATER, BACK, AGAIN]
    covered, moment = ranges(reports, {}), Moment(reports=reports, ends=[], open={}, running=False)
    unusable_input(job(reports), view(Cluster()), ["in"], covered, moment, from_earliest=from_earliest)
    (gap,) = moment.gaps[Part.FED]
    assert "before the restore 10" in gap


def test_a_job_without_a_completed_checkpoint_is_unknown() -> None:
    moment = Moment(reports=[], ends=[], open={}, running=False)
    unusable_input(job([]), view(Cluster()), ["in"], ranges([], {}), moment, from_earliest=True)
    assert moment.gaps[Part.COORDINATOR] == ["no checkpoint is completed"]


def test_a_query_is_said_to_be_what_cannot_be_verified_and_nothing_else_is_blamed() -> None:
    reports = [one._replace(ends=None) for one in (SECOND, THIRD)]
    asked = replace(job(reports, cluster_id=""), origin=lambda _: ("", {}))
    moment = Moment(reports=reports, ends=[], open={}, running=False)
    unusable_input(asked, view(Cluster()), ["in"], ranges(reports, {}), moment, from_earliest=False)
    history = History(job="job", fed=(), rest=(), reports=moment.reports, gaps=moment.gaps)
    said = " ".join(words for one in judge(history, AT_REST).results.values() for words in one.evidence)
    assert "a Structured Streaming query, which cannot be verified: only Spark knows the offsets" in said
    assert "cluster" not in said
    assert "positions" not in said
    assert "--from-earliest" not in said


def test_dead_letters_that_are_held_back_are_waited_for_and_missing() -> None:
    seen = iter([False, True])
    moment = steady_moment(job([FIRST, SECOND]), lambda: looks(Cluster())()._replace(letters=next(seen)), 30)
    assert not moment.gaps[Part.REST]
    moment = steady_moment(job([FIRST, SECOND]), lambda: looks(Cluster())()._replace(letters=False), 0)
    assert moment.gaps[Part.REST] == ["open transactions hold back the topic of dead letters"]
