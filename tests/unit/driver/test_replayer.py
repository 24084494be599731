"""Which lost slots are replayed, from which input, in which order, and what ends the attempt."""

from collections.abc import Collection, Sequence
from typing import Any

import pytest

from onceward.common.errors import FencedError, HaltedError, OncewardError
from onceward.connectors.interfaces import Origin, Plan, ReplayRefusedError
from onceward.connectors.tasks import Vote
from onceward.driver.mailbox import GenerationFailedError, Mailbox
from onceward.driver.outputs import Inputs, Votes
from onceward.driver.replaying import Replayer
from onceward.protocol.answers import Abort, Answer, Fail, Replay, Verdict
from onceward.protocol.committing import PreCommitted
from onceward.protocol.facts import AbortReason
from onceward.protocol.values import (
    NO_CHECKPOINT,
    CheckpointId,
    Committable,
    Document,
    Generation,
    JobName,
    JsonObject,
    OnLost,
    Outcome,
    ParticipantName,
)
from tests.support.documents import document
from tests.support.running_job import JOB, SINK
from tests.unit.driver.settling import Driver, held, slots

FIVE = CheckpointId(5)
POSITIONS = document(next=40)
ALL = (0, 1, 2, 3)


def split(slot: int) -> JsonObject:
    return {"start": 10 * slot, "end": 10 * slot + 10}


class Lossy(Driver):
    """Checkpoint 5 with four slots; 1 and 3 are proved lost. A test sets what fails next."""

    def __init__(self, on_lost: OnLost = OnLost.REPLAY, positions: Document | None = POSITIONS) -> None:
        super().__init__(on_lost)
        self.actions: list[str] = []
        """The actions at the brokers and the coordinator, in order."""
        self.running: Any = lambda: None
        """Called in the Spark job."""
        self.known: OncewardError | None = None
        """The source's diagnosis of a Spark error."""
        self.amended = Verdict.ACCEPTED
        self.checked: list[tuple[Sequence[JsonObject], Document]] = []
        self.declined: list[str] = []
        self.interrupts = 0
        same: Any = self
        self.job, self.traces = JOB, None
        self.letters: Any = None
        self.source = self.sink = self.committer = self.tasks = self.journal = same
        self.runtime = self.queue
        self.mailbox = Mailbox(on_complete=self.settler.complete, on_interrupt=self._interrupt, runtime=self.runtime)
        self.replayer = Replayer(same, self.settler._outputs, same, self.settler, self.mailbox)
        self.settler.expect(FIVE, held(*ALL), positions)
        self.proofs = {0: Outcome.COMMITTED, 1: Outcome.LOST, 2: Outcome.COMMITTED, 3: Outcome.LOST}
        self.complete(FIVE)

    def replay(self, *lost: int, amendment: int = 0) -> None:
        wanted = Replay(checkpoint=FIVE, participant=SINK.name, slots=frozenset(lost or (1, 3)), amendment=amendment)
        self.replayer.replay(wanted)

    def _interrupt(self) -> None:
        self.interrupts += 1

    def log(self, event: str, **facts: Any) -> None:
        self.actions.append(event)
        self.events.append((event, facts))

    def sweep(self, job: JobName, *, keep: Collection[Committable], known: Any = (), **_: Any) -> Sequence[str]:
        if known:
            assert len(keep) == len(known[0].committables) + len(ALL), "those of the checkpoint would be aborted, too"
        else:
            self.actions.append(f"sweep beside {len(keep)}")
        return ()

    def origin(self, committable: Committable) -> Origin:
        return Origin(inputs=[split(committable.slot)], replayable=True)

    def check_destination(self, lost: Sequence[Committable]) -> None: ...

    def check_replay(self, splits: Sequence[JsonObject], positions: Document) -> None:
        self.checked.append((splits, positions))

    def describe(self, one: Any) -> str:
        """Of the source and of the committer."""
        return str(one) if isinstance(one, list) else super().describe(one)

    def start(self) -> None:
        self.actions.append("start Spark")

    def run(
        self, *, generation: Generation, checkpoint: CheckpointId, plan: Plan, sinks: Collection[ParticipantName]
    ) -> Votes:
        self.actions.append(f"write {[one['start'] for one in plan.splits]}")
        self.running()
        votes = [Vote(slot=slot, attempt=0, records=10, bytes=10) for slot in range(len(plan.splits))]
        return dict.fromkeys(sinks, votes)

    def inputs(self, plan: Plan, votes: Votes) -> Inputs:
        inputs = [[one] for one in plan.splits]
        return dict.fromkeys(votes, inputs)

    def pre_commit(self, checkpoint: CheckpointId, votes: Sequence[Vote], *_: Any, leftovers: bool) -> PreCommitted:
        return PreCommitted(committables=slots(*(vote.slot for vote in votes), again=True))

    def amend(
        self, checkpoint: CheckpointId, participant: ParticipantName, amendment: int, lost: Any, written: Any
    ) -> Answer:
        assert (amendment, participant) == (0, SINK.name)
        self.actions.append(f"amend {sorted(lost)} by {[one.slot for one in written]}")
        return Answer(verdict=self.amended, detail="so it is")

    def diagnose(self, _error: BaseException) -> OncewardError | None:
        return self.known

    def decline(self, checkpoint: CheckpointId, participant: ParticipantName, reason: str) -> None:
        self.actions.append("decline")
        self.declined.append(reason)


WRITTEN = ["sweep beside 4", "start Spark", "write [10, 30]"]


def test_replayed_slots_replace_the_lost_ones_and_are_committed() -> None:
    driver = Lossy()
    driver.replay()
    assert driver.actions == [*WRITTEN, "replayed", "amend [1, 3] by [1, 3]"]
    assert driver.checked == [((split(1), split(3)), POSITIONS)]
    kept = slots(0, 2), slots(1, 3, again=True)
    assert driver.settler.unsettled() == {SINK.name: (kept[0][0], kept[1][0], kept[0][1], kept[1][1])}
    driver.proofs = {1: Outcome.COMMITTED, 3: Outcome.COMMITTED}
    driver.queue.work()
    assert driver.asked[1:] == [[1, 3]]
    assert driver.settler.settled == FIVE


def test_listeners_get_events_of_replays_and_refused_replays() -> None:
    driver = Lossy()
    driver.events.clear()
    driver.queue.now = 3.0

    def takes() -> None:
        driver.queue.now += 1.2345

    driver.running = takes
    driver.replay()
    facts = {"slots": 2, "transactions": 2, "written": 20, "amendment": 1, "seconds": 1.234}
    assert driver.events == [("replayed", {"checkpoint": FIVE, **facts})]
    driver = Lossy(positions=None)
    driver.events.clear()
    driver.replay()
    why = "the positions of checkpoint 5 are not known"
    assert driver.events == [("replay declined", {"checkpoint": FIVE, "slots": 2, "reason": why})]


@pytest.mark.parametrize("verdict", sorted(set(Verdict) - {Verdict.ACCEPTED, Verdict.DUPLICATE}))
def test_an_amendment_that_the_coordinator_does_not_take_is_never_committed(verdict: Verdict) -> None:
    """The coordinator still records the slots as lost: their replacements would be replayed again and duplicated."""
    driver = Lossy()
    driver.amended = verdict
    with pytest.raises(GenerationFailedError, match="the next generation aborts it"):
        driver.replay()
    assert driver.queue.calls == []
    assert driver.asked == [list(ALL)]


def test_an_amendment_that_was_heard_before_is_committed() -> None:
    driver = Lossy()
    driver.amended = Verdict.DUPLICATE
    driver.replay()
    assert len(driver.queue.calls) == 1


def test_an_instruction_that_was_carried_out_already_changes_nothing() -> None:
    driver = Lossy()
    driver.replay()
    done = list(driver.actions)
    driver.replay()
    Lossy().replayer.replay(
        Replay(checkpoint=CheckpointId(4), participant=SINK.name, slots=frozenset({0}), amendment=0)
    )
    assert driver.actions == done


def test_a_sink_that_gives_losses_up_now_proves_them_again_and_writes_nothing() -> None:
    driver = Lossy(OnLost.SKIP)
    driver.settler.settled = NO_CHECKPOINT  # as in the next generation
    driver.settler.expect(FIVE, held(*ALL), POSITIONS, amendment=1)
    driver.replay(amendment=1)
    driver.queue.work()
    assert driver.actions == []
    assert driver.asked == [list(ALL)] * 2


def test_a_refusal_before_anything_is_written_halts_the_job_and_names_the_records() -> None:
    driver = Lossy(positions=None)
    driver.replay()
    assert driver.actions == ["sweep beside 4", "sweep beside 4", "replay declined", "decline"]
    assert driver.declined == [
        "the positions of checkpoint 5 are not known. Lost: the records of slot 1; the records of slot 3"
    ]


def test_input_that_cannot_be_read_again_is_never_read() -> None:
    driver, changed = Lossy(), ReplayRefusedError("the log is another one")
    source: Any = driver

    def refuse(*_: Any) -> None:
        raise changed

    source.check_replay = refuse
    driver.replay()
    assert not any(one.startswith("write") for one in driver.actions)
    assert driver.declined[0].startswith("the log is another one. Lost: ")


@pytest.mark.parametrize(
    "inputs",
    [[[split(3)], [split(1)]], [[split(1), split(3)]], [[split(1)], [split(3)], []]],
    ids=["exchanged", "together", "a slot more"],
)
def test_output_of_a_transform_that_now_moves_rows_is_swept_before_the_job_halts(
    inputs: Sequence[Sequence[JsonObject]],
) -> None:
    """The replay wrote other slots than the lost ones. Left open, they hold readers back while an operator decides."""
    driver = Lossy()
    tasks: Any = driver
    tasks.inputs = lambda _plan, votes: dict.fromkeys(votes, inputs)
    driver.replay()
    assert driver.actions == [*WRITTEN, "sweep beside 4", "replay declined", "decline"]
    assert "the transform moves rows between partitions now" in driver.declined[0]


def test_slots_of_which_other_records_are_set_aside_now_are_not_replaced() -> None:
    driver = Lossy()
    driver.letters = "counted"
    driver.replay()
    assert driver.actions == [*WRITTEN, "sweep beside 4", "replay declined", "decline"]
    assert "does not store how many records its slots had" in driver.declined[0]


def test_a_long_list_of_losses_fits_the_coordinators_limit() -> None:
    driver = Lossy(positions=None)
    committer: Any = driver
    committer.describe = lambda _: "r" * 5_000
    driver.replay()
    (reason,) = driver.declined
    assert 6_000 < len(reason) < 6_100
    assert "… (all of them: onceward checkpoints " in reason


def failing(driver: Lossy, error: Exception) -> None:
    def fail() -> None:
        raise error

    driver.running = fail


def test_a_job_that_fails_fails_the_generation_and_halts_nothing() -> None:
    driver = Lossy()
    failing(driver, RuntimeError("an executor died"))
    with pytest.raises(GenerationFailedError, match="checkpoint 5 again failed: an executor died"):
        driver.replay()
    assert driver.declined == []


@pytest.mark.parametrize("named_by", ["the source", "the tasks"])
def test_input_that_is_gone_while_it_is_read_again_halts_the_job(named_by: str) -> None:
    driver, gone = Lossy(), HaltedError("offsets 10 to 19 are gone")
    driver.known = gone
    failing(driver, RuntimeError("read failed") if named_by == "the source" else gone)
    driver.replay()
    assert driver.declined[0].startswith("offsets 10 to 19 are gone. Lost: ")


def test_another_typed_error_ends_the_generation_unchanged() -> None:
    driver = Lossy()
    failing(driver, FencedError("a newer generation is at work"))
    with pytest.raises(FencedError):
        driver.replay()


def test_the_end_of_the_generation_outranks_the_job_that_it_interrupted() -> None:
    driver = Lossy()

    def interrupted() -> None:
        driver.mailbox.deliver(Fail(reason="the coordinator has given up"))
        raise RuntimeError("the job was cancelled")

    driver.running = interrupted
    with pytest.raises(GenerationFailedError, match="the coordinator has given up"):
        driver.replay()
    assert driver.interrupts == 1


def test_a_replay_can_be_interrupted_only_while_it_runs() -> None:
    driver = Lossy()
    driver.replay()
    abort = Abort(checkpoint=FIVE, base=FIVE, reason=AbortReason.EXPIRED, detail="")
    driver.mailbox.deliver(abort)
    assert driver.interrupts == 0
