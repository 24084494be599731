"""A generation of the driver with the real core: how it reacts to lost, repeated and late messages."""

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from onceward.common.errors import (
    ClaimChangedError,
    CoordinatorLostError,
    FencedError,
    GenerationEndedError,
    HaltedError,
    OncewardError,
)
from onceward.driver import generation
from onceward.driver.exits import StopFlag
from onceward.driver.generations import Generations
from onceward.driver.mailbox import NothingToReadError
from onceward.driver.restarts import NO_RESTART
from onceward.protocol.answers import Abort, Answer, Instruction, Trigger, Verdict
from onceward.protocol.committing import Age, PreCommitted
from onceward.protocol.events import Acknowledge, CloseJob, CloseReason, Event
from onceward.protocol.state import JobState
from onceward.protocol.status import JobStatus
from onceward.protocol.values import Author, CheckpointId, Claim, Committable, Generation, JobName
from tests.support.running_job import SINK, SOURCE, Coordinator, Job, nothing


def is_answer_of(event: Event, checkpoint: int, participant: str) -> bool:
    return isinstance(event, Acknowledge) and (event.checkpoint, event.participant) == (checkpoint, participant)


def test_a_generation_reads_each_range_once_and_commits_in_order() -> None:
    job = Job(Coordinator(), until=5)
    assert job.generation.run() is CloseReason.STOPPED
    assert job.read == {2: (0, 10), 3: (10, 20), 4: (20, 30), 5: (30, 40)}
    assert job.committed == [2, 3, 4, 5]
    assert job.aborted == []


def test_a_trigger_that_is_repeated_runs_once_and_is_answered_as_before() -> None:
    """Each wanted instruction is sent three times after each event, as if the stream were reopened repeatedly."""
    coordinator, answers = Coordinator(repeats=3), list[tuple[int, str]]()

    def note(event: Event, answer: Answer) -> None:
        if isinstance(event, Acknowledge) and answer.verdict is not Verdict.DUPLICATE:
            answers.append((event.checkpoint, event.participant))

    coordinator.answered = note
    job = Job(coordinator, until=6)
    assert job.generation.run() is CloseReason.STOPPED
    assert job.ran == job.committed == [2, 3, 4, 5, 6]
    assert answers == [(number, name) for number in range(1, 7) for name in (SOURCE.name, SINK.name)]


@pytest.mark.parametrize(
    "error", [CoordinatorLostError("no answer"), OncewardError("no answer")], ids=["lost", "failed"]
)
def test_a_driver_that_fails_after_it_acknowledged_leaves_its_transactions_to_the_decision(
    error: OncewardError,
) -> None:
    """The answer to the last acknowledgement is lost: the checkpoint is completed, and the driver cannot know."""
    coordinator = Coordinator()

    def lose(event: Event, _answer: Answer) -> None:
        if is_answer_of(event, 2, SINK.name):
            coordinator.hang_up()
            raise error

    coordinator.answered = lose
    job = Job(coordinator, until=9)
    with pytest.raises(OncewardError, match="no answer"):
        job.generation.run()
    assert (job.committed, job.aborted) == ([], [])
    assert all(2 in kept for kept in job.swept_beside[1:]), "its transaction was swept"
    coordinator.answered = nothing
    successor = Job(coordinator, until=4)
    successor.generation.run()
    assert successor.committed[0] == 2, "the decision was made, and the next generation carries it out"
    assert (successor.swept_beside[0], successor.aborted) == ([2], []), "its recovery aborts what is decided"
    assert successor.read[successor.ran[0]] == (10, 20)


def test_a_late_acknowledgement_aborts_its_checkpoint_and_the_generation_continues() -> None:
    coordinator = Coordinator()

    def takes_too_long(checkpoint: int) -> None:
        if checkpoint == 3:
            coordinator.pass_time(11)

    job = Job(coordinator, until=5, running=takes_too_long)
    assert job.generation.run() is CloseReason.STOPPED
    assert job.aborted == [3]
    assert job.read == {2: (0, 10), 3: (10, 20), 4: (10, 20), 5: (20, 30)}
    assert job.committed == [2, 4, 5]


def test_an_abort_that_was_never_heard_shows_in_the_base_of_the_next_trigger() -> None:
    """The coordinator restarts, forgets the answers to 4 and aborts it. The driver never hears of the abort."""
    coordinator, forgotten = Coordinator(), threading.Event()

    def forget(event: Event, _answer: Answer) -> None:
        if is_answer_of(event, 4, SINK.name) and not forgotten.is_set():
            coordinator.restart()
            coordinator.pass_time(11)
            forgotten.set()

    def settles_late(checkpoint: int) -> None:
        if checkpoint == 3:
            assert forgotten.wait(30)

    def hears(instruction: Instruction) -> bool:
        return not isinstance(instruction, Abort)

    coordinator.answered, coordinator.hears = forget, hears
    job = Job(coordinator, until=6)
    job.committing = settles_late
    assert job.generation.run() is CloseReason.STOPPED
    assert job.aborted == [4]
    assert job.read == {2: (0, 10), 3: (10, 20), 4: (20, 30), 5: (20, 30), 6: (30, 40)}
    assert job.committed == [2, 3, 5, 6]


def test_of_two_aborts_in_a_row_the_last_one_speaks_for_both() -> None:
    """The acknowledgements of 4 are forgotten and 4 expires, then a cancel aborts 5. The driver hears only of the
    second abort, and no trigger ever follows."""
    coordinator, cancelled = Coordinator(), threading.Event()

    def forget(event: Event, _answer: Answer) -> None:
        if is_answer_of(event, 4, SINK.name):
            coordinator.restart()
            coordinator.pass_time(11)
            coordinator.cancel()
            cancelled.set()

    def settles_late(checkpoint: int) -> None:
        if checkpoint == 3:
            assert cancelled.wait(30)

    def hears(instruction: Instruction) -> bool:
        return not isinstance(instruction, Trigger) or instruction.checkpoint < 5

    coordinator.answered, coordinator.hears = forget, hears
    job = Job(coordinator, until=6)
    job.committing = settles_late
    assert job.generation.run() is CloseReason.CANCELLED
    assert job.aborted == [4], "its transaction would stay open, and the driver wait for ever"
    assert job.committed == [2, 3]


class Claimed(Job):
    """Keep the order in which checkpoints are claimed and committed."""

    def __init__(self, coordinator: Coordinator, *, until: int, fenced_at: int = 0) -> None:
        super().__init__(coordinator, until=until)
        self.said: list[tuple[str, int]] = []
        self.committing = lambda checkpoint: self.said.append(("commit", checkpoint))
        self._fenced_at = fenced_at

    def take_claim(self, job: JobName, claim: Claim, seen: Collection[Claim]) -> None:
        self.said.append(("claim", claim.completed))

    def renew_claim(self, claim: Claim, *, give_up: Callable[[], bool], **_: Any) -> bool:
        if claim.completed == self._fenced_at:
            raise FencedError("another store has claimed the job")
        self.said.append(("claim", claim.completed))
        return True


def test_each_checkpoint_is_claimed_before_it_is_committed() -> None:
    job = Claimed(Coordinator(), until=4)
    job.generation.run()
    assert job.said == [("claim", 0), *((what, n) for n in (2, 3, 4) for what in ("claim", "commit"))]


def test_a_driver_that_has_lost_the_claim_commits_nothing_more() -> None:
    job = Claimed(Coordinator(), until=9, fenced_at=3)
    with pytest.raises(FencedError):
        job.generation.run()
    assert job.said == [("claim", 0), ("claim", 2), ("commit", 2)]


class Owned(Job):
    """The sink's cluster knows an owner of the job."""

    owner = Claim(store_id="store-b", generation=Generation(7), completed=CheckpointId(40), holder="d7")

    def __init__(self, coordinator: Coordinator, *, until: int) -> None:
        super().__init__(coordinator, until=until)
        self.taken: list[tuple[Claim, Collection[Claim]]] = []

    def read_claim(self, job: JobName) -> Claim | None:
        return self.owner

    def take_claim(self, job: JobName, claim: Claim, seen: Collection[Claim]) -> None:
        self.taken.append((claim, seen))


def test_the_coordinator_judges_the_claim_of_the_sinks_cluster_and_no_other_is_replaced() -> None:
    coordinator = Coordinator()
    job = Owned(coordinator, until=2)
    job.generation.run()
    assert coordinator.asked_to_open == {"claims": (Owned.owner,), "takeover": True}
    claim = Claim(store_id="store-a", generation=Generation(1), completed=CheckpointId(0), holder=coordinator.driver)
    assert job.taken == [(claim, (Owned.owner,))]


def test_the_coordinator_gets_the_claims_of_all_systems_the_newest_first() -> None:
    coordinator = Coordinator()
    older = replace(Owned.owner, completed=CheckpointId(39))
    Job(coordinator, until=2).generation._open([older, None, Owned.owner, older])
    assert coordinator.asked_to_open["claims"] == (Owned.owner, older)


def test_the_last_line_of_a_driver_names_what_it_found_completed(caplog: pytest.LogCaptureFixture) -> None:
    coordinator = Coordinator()
    assert Job(coordinator, until=3).generation.run() is CloseReason.STOPPED
    again = Job(coordinator, until=99)
    with caplog.at_level(logging.INFO, logger="onceward"):
        again.generation._open([])
        again.generation._m.progress.left("halted")
    assert caplog.messages[-1].endswith("the last completed checkpoint is 3")


def test_the_last_line_of_a_driver_names_a_checkpoint_that_had_nothing_to_settle(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(checkpoint: int) -> None:
        raise OncewardError("no executor")

    coordinator = Coordinator()
    job = Job(coordinator, until=99, running=fail)
    with caplog.at_level(logging.INFO, logger="onceward"):
        with pytest.raises(OncewardError):
            job.generation.run()
        job.generation._m.progress.left("failed")
    assert coordinator.state.durable.base == 1
    assert caplog.messages[-1].endswith("the last completed checkpoint is 1")


def test_a_successor_claims_the_checkpoint_that_it_continues_from() -> None:
    coordinator = Coordinator()
    Job(coordinator, until=4).generation.run()
    successor = Owned(coordinator, until=6)
    successor.generation.run()
    ((claim, _),) = successor.taken
    assert (claim.generation, claim.completed) == (2, 4)


class Overtaken(Job):
    """Another store claims the job while it is opened."""

    def take_claim(self, job: JobName, claim: Claim, seen: Collection[Claim]) -> None:
        raise ClaimChangedError("another store has claimed the job")


def test_a_driver_that_does_not_get_the_claim_sweeps_and_commits_nothing() -> None:
    coordinator = Coordinator()
    with pytest.raises(FencedError):
        Claimed(coordinator, until=9, fenced_at=3).generation.run()
    assert not coordinator.state.durable.settled
    job = Overtaken(coordinator, until=9)
    with pytest.raises(ClaimChangedError):
        job.generation.run()
    assert (job.committed, job.aborted, job.swept_beside, job.ran) == ([], [], [], [])


class Forged(Job):
    """The coordinator's store names a transaction of another job."""

    def __init__(self, coordinator: Coordinator, *, until: int) -> None:
        super().__init__(coordinator, until=until)
        self.claimed: list[Claim] = []

    def check(self, author: Author, committables: Sequence[Committable]) -> None:
        raise HaltedError("it names another's transaction")

    def take_claim(self, job: JobName, claim: Claim, seen: Collection[Claim]) -> None:
        self.claimed.append(claim)


def test_a_driver_that_is_given_the_transaction_of_another_claims_sweeps_and_commits_nothing() -> None:
    coordinator = Coordinator()
    with pytest.raises(FencedError):
        Claimed(coordinator, until=9, fenced_at=3).generation.run()
    job = Forged(coordinator, until=9)
    with pytest.raises(HaltedError, match="another's transaction"):
        job.generation.run()
    assert (job.claimed, job.committed, job.aborted, job.swept_beside, job.ran) == ([], [], [], [], [])


class WentBack(Forged):
    """Its system was restored from a backup."""

    def confirm(self, committables: Sequence[Committable]) -> None:
        if committables:
            raise HaltedError("the receipt is gone")


def test_a_driver_whose_system_lacks_what_was_settled_claims_sweeps_and_writes_nothing() -> None:
    coordinator = Coordinator()
    Job(coordinator, until=2).generation.run()
    assert coordinator.state.durable.settled
    job = WentBack(coordinator, until=9)
    with pytest.raises(HaltedError, match="the receipt is gone"):
        job.generation.run()
    assert (job.claimed, job.committed, job.aborted, job.swept_beside, job.ran) == ([], [], [], [], [])


@pytest.mark.parametrize("hours", [10, -10])
def test_a_wall_clock_that_jumps_after_a_pre_commit_neither_aborts_nor_delays_a_checkpoint(hours: int) -> None:
    coordinator, good_for = Coordinator(), list[float | None]()

    def note(event: Event, _answer: Answer) -> None:
        if isinstance(event, Acknowledge) and event.participant == SINK.name and event.checkpoint > 1:
            good_for.append(event.good_for_s)

    class Jumped(Job):
        def age(self, committable: Committable) -> Age | None:
            name = f"t{committable.document.body['checkpoint']}"
            return Age(transaction=name, open_for=timedelta(hours=hours), timeout=timedelta(hours=1))

    coordinator.answered = note
    job = Jumped(coordinator, until=5)
    assert job.generation.run() is CloseReason.STOPPED
    assert (job.committed, job.aborted) == ([2, 3, 4, 5], [])
    assert all(3000 < (seconds or 0) <= 3540 for seconds in good_for)
    assert len(good_for) >= 4


class Unswept(Job):
    """The brokers do not report open transactions when the generation recovers."""

    def sweep(self, _job: JobName, **more: Any) -> Sequence[str]:
        swept = super().sweep(_job, **more)
        if len(self.swept_beside) == 1:
            raise OncewardError("no broker answers")
        return swept


def test_a_generation_that_cannot_recover_leaves_decided_transactions_alone() -> None:
    coordinator = Coordinator()
    with pytest.raises(FencedError):
        Claimed(coordinator, until=9, fenced_at=3).generation.run()
    job = Unswept(coordinator, until=9)
    with pytest.raises(OncewardError, match="no broker answers"):
        job.generation.run()
    assert job.swept_beside == [[3], [3]]


class Unwritten(Job):
    """Its checkpoints leave nothing to commit: no record passed the transform, or the sink has no transactions."""

    def __init__(self, coordinator: Coordinator, *, until: int) -> None:
        super().__init__(coordinator, until=until, running=self._wait_for_claim)
        self.claimed: list[int] = []
        self._changed = threading.Condition()

    def _wait_for_claim(self, checkpoint: int) -> None:
        """Wait for the claim of the base, before the driver may leave. The first base has no claim to wait for."""
        with self._changed:
            assert checkpoint == 2 or self._changed.wait_for(lambda: checkpoint - 1 in self.claimed, 60)

    def pre_commit(self, checkpoint: CheckpointId, *_: Any, leftovers: bool) -> PreCommitted:
        return PreCommitted(committables=())

    def run(self, **more: Any) -> Any:
        ((name, (vote,)),) = super().run(**more).items()
        return {name: [replace(vote, records=0, bytes=0)]}

    def take_claim(self, job: JobName, claim: Claim, seen: Collection[Claim]) -> None:
        self.claimed.append(claim.completed)

    def renew_claim(self, claim: Claim, *, give_up: Callable[[], bool], **_: Any) -> bool:
        with self._changed:
            self.claimed.append(claim.completed)
            self._changed.notify_all()
        return True


def test_a_checkpoint_with_nothing_to_commit_is_settled_once_the_next_one_builds_on_it() -> None:
    """The claim follows, as do the group's offsets, and a later failure begins a new series of restarts."""
    job = Unwritten(Coordinator(repeats=2), until=4)
    job.generation.run()
    assert job.read == {2: (0, 10), 3: (10, 20), 4: (20, 30)}
    assert job.claimed == [0, 2, 3]
    assert job.generation.settled_records is not None


def away(what: Callable[[], None]) -> Callable[[int], None]:
    """Run ``what`` while a driver runs checkpoint 3, which pauses meanwhile."""

    def running(checkpoint: int) -> None:
        if checkpoint == 3:
            what()

    return running


def after_an_absence(what: Callable[[Coordinator], None]) -> tuple[Coordinator, Job, OncewardError]:
    coordinator = Coordinator()
    job = Job(coordinator, until=9, running=away(lambda: what(coordinator)))
    with pytest.raises(OncewardError) as left:
        job.generation.run()
    assert (job.aborted, len(job.swept_beside)) == ([], 1), "it has changed something for a generation that is over"
    return coordinator, job, left.value


@pytest.mark.parametrize("what", [Coordinator.give_up, Coordinator.settle_for_it], ids=["given up", "settled for"])
def test_a_driver_whose_generation_ended_changes_nothing_and_may_run_the_next_one(
    what: Callable[[Coordinator], None],
) -> None:
    coordinator, former, error = after_an_absence(what)
    assert isinstance(error, GenerationEndedError)
    successor = Job(coordinator, until=5)
    assert successor.generation.run() is CloseReason.STOPPED
    assert successor.read[successor.ran[0]] == former.read[3], "its records are read again"


def test_a_driver_that_was_replaced_while_it_was_away_is_fenced() -> None:
    _, _, error = after_an_absence(Coordinator.replace_it)
    assert isinstance(error, FencedError)


@pytest.mark.parametrize(
    ("what", "leaves_with"),
    [
        (Coordinator.settle_for_it, GenerationEndedError),
        (Coordinator.replace_it, FencedError),
        (lambda _: None, FencedError),
    ],
    ids=["the coordinator's", "another driver's", "another store's"],
)
def test_the_coordinator_is_asked_about_a_newer_generation_that_a_driver_found_at_the_clusters(
    what: Callable[[Coordinator], None], leaves_with: type[OncewardError]
) -> None:
    def meets(coordinator: Coordinator) -> None:
        what(coordinator)
        raise FencedError("a newer generation is at work")

    coordinator = Coordinator()
    job = Job(coordinator, until=9)
    job.committing = away(lambda: meets(coordinator))
    with pytest.raises(leaves_with):
        job.generation.run()


@pytest.mark.parametrize("error", [HaltedError("input is gone"), OncewardError("no answer")], ids=["halted", "failed"])
def test_a_driver_that_needs_a_person_reports_it_when_it_leaves(error: OncewardError) -> None:
    coordinator = Coordinator()

    def fails(_checkpoint: int) -> None:
        raise error

    with pytest.raises(type(error)):
        Job(coordinator, until=5, running=fails).generation.run()
    assert coordinator.halted is isinstance(error, HaltedError)


def test_a_job_ends_only_when_its_last_commits_show_everywhere() -> None:
    coordinator, reported = Coordinator(), list[str]()

    def note(event: Event, _answer: Answer) -> None:
        if isinstance(event, CloseJob):
            reported.append("closed")

    def ending(_job: JobName) -> list[str]:
        reported.append("looked")
        return ["a transaction"] if len(reported) < 3 else []

    coordinator.answered = note
    job = Job(coordinator, until=3)
    job.ending = ending
    assert job.generation.run() is CloseReason.STOPPED
    assert reported == ["looked", "looked", "looked", "closed"]


def test_a_job_does_not_end_in_an_older_copy_of_the_store() -> None:
    """The copy is promoted when the last checkpoint is settled. It lacks that checkpoint."""
    coordinator, copies = Coordinator(), list[JobState]()

    def copy(_event: Event, _answer: Answer) -> None:
        copies.append(coordinator.state)

    def promote(_job: JobName) -> list[str]:
        newest = coordinator.state.durable.base
        coordinator.state = next(state for state in reversed(copies) if state.durable.base < newest)
        return []

    coordinator.answered = copy
    job = Job(coordinator, until=3)
    job.ending = promote
    with pytest.raises(FencedError, match="an older copy was put back"):
        job.generation.run()
    assert coordinator.state.durable.status is JobStatus.RUNNING


def test_a_job_whose_last_commits_are_not_visible_has_not_ended_and_reports_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(generation, "_ENDS_LIMIT", 0.0)
    job = Job(Coordinator(), until=3)
    job.ending = lambda _job: ["a transaction"]
    with pytest.raises(OncewardError, match="readers do not see their records yet"):
        job.generation.run()


@pytest.mark.parametrize("again", [True, False])
def test_a_job_whose_input_has_failed_is_left_settled_with_the_cause_until_there_is_input_again(again: bool) -> None:
    coordinator, flag = Coordinator(), StopFlag()
    waited: list[tuple[str, int]] = []

    def fail_at_first(checkpoint: int) -> None:
        if checkpoint == 3 and not waited:
            generations.run_dry(NothingToReadError("The query has failed: ValueError"))

    def await_input() -> bool:
        waited.append((coordinator.left_because, coordinator.state.durable.base))
        assert coordinator.state.settled
        assert generations.dry
        return again

    job = Job(coordinator, until=5, running=fail_at_first)
    generations = Generations(job.generation._m, coordinator, NO_RESTART, flag, takeover=True, await_input=await_input)  # type: ignore[arg-type]
    job.generation.stop = generations.stop  # type: ignore[method-assign]
    assert generations.run() is CloseReason.STOPPED
    assert waited == [("The query has failed: ValueError", 3)]
    assert coordinator.back_within_s is None
    assert job.committed[:2] == [2, 3]
    assert (job.committed[-1] >= job.until) is again
