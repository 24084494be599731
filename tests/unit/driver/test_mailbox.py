import threading
from dataclasses import replace

import pytest

from onceward.common.errors import FencedError, GenerationEndedError, HaltedError
from onceward.driver.mailbox import GenerationFailedError, Mailbox
from onceward.driver.runtime import Threads
from onceward.protocol import answers
from onceward.protocol.facts import AbortReason
from onceward.protocol.values import CheckpointId, ParticipantName


class Ticking(Threads):
    """A clock that a test sets."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


class Driver:
    """A mailbox and the completions that it passed on."""

    def __init__(self) -> None:
        self.completed: list[tuple[int, int]] = []
        self.interrupts = 0
        self.mailbox = Mailbox(on_complete=lambda *what: self.completed.append(what), on_interrupt=self._interrupt)

    def _interrupt(self) -> None:
        self.interrupts += 1


def trigger(checkpoint: int) -> answers.Trigger:
    return answers.Trigger(checkpoint=CheckpointId(checkpoint), base=CheckpointId(checkpoint - 1))


def replay(checkpoint: int) -> answers.Replay:
    return answers.Replay(
        checkpoint=CheckpointId(checkpoint), participant=ParticipantName("sink"), slots=frozenset({0}), amendment=0
    )


def abort(checkpoint: int) -> answers.Abort:
    return answers.Abort(
        checkpoint=CheckpointId(checkpoint), base=CheckpointId(checkpoint - 1), reason=AbortReason.EXPIRED, detail=""
    )


def test_a_trigger_wakes_the_main_thread() -> None:
    driver = Driver()
    timer = threading.Timer(0.01, driver.mailbox.deliver, [trigger(3)])
    timer.start()
    assert driver.mailbox.next(30) == trigger(3)
    assert driver.mailbox.next(0) is None


def test_the_time_that_a_trigger_waits_for_a_busy_main_thread_is_measured() -> None:
    clock = Ticking()
    mailbox = Mailbox(on_complete=lambda *_: None, on_interrupt=lambda: None, runtime=clock)
    mailbox.deliver(trigger(3))
    clock.now = 2.0
    mailbox.deliver(trigger(3))  # by a coordinator that has restarted
    clock.now = 3.0
    assert (mailbox.next(0), mailbox.kept_waiting) == (trigger(3), 3.0)
    threading.Timer(0.01, mailbox.deliver, [trigger(4)]).start()
    assert (mailbox.next(30), mailbox.kept_waiting) == (trigger(4), 0.0), "it waited for the trigger"


@pytest.mark.parametrize("wakes", [trigger(4), abort(4), replay(3)], ids=lambda one: type(one).__name__)
def test_new_work_wakes_the_main_thread_and_finished_work_does_not(
    wakes: answers.Trigger | answers.Abort | answers.Replay,
) -> None:
    driver = Driver()
    driver.mailbox.deliver(abort(3))
    driver.mailbox.next(0)
    threading.Timer(0.05, driver.mailbox.deliver, [wakes]).start()
    assert driver.mailbox.next(600) == wakes


def test_an_abort_that_overtakes_its_trigger_ends_it() -> None:
    driver = Driver()
    driver.mailbox.deliver(trigger(3))
    driver.mailbox.deliver(abort(3))
    assert driver.mailbox.next(0) == abort(3)
    assert driver.mailbox.next(0) is None


def test_the_trigger_of_the_checkpoint_that_runs_is_not_kept_for_later() -> None:
    """Triggers are repeated during the run. A kept one would make the driver send its acknowledgements again."""
    driver = Driver()
    driver.mailbox.deliver(trigger(3))
    assert driver.mailbox.next(0) == trigger(3)
    driver.mailbox.running(CheckpointId(3))
    driver.mailbox.deliver(trigger(3))
    driver.mailbox.running(None)
    assert driver.mailbox.next(0) is None
    driver.mailbox.deliver(trigger(3))
    assert driver.mailbox.next(0) == trigger(3), "the next run's own trigger"


@pytest.mark.parametrize("aborted", [2, 3, 4])
def test_an_abort_ends_every_trigger_up_to_its_checkpoint_and_none_after_it(aborted: int) -> None:
    driver = Driver()
    driver.mailbox.deliver(answers.Trigger(checkpoint=CheckpointId(3), base=CheckpointId(1)))
    end = answers.Abort(
        checkpoint=CheckpointId(aborted), base=CheckpointId(1), reason=AbortReason.EXPIRED, detail="too late"
    )
    driver.mailbox.deliver(end)
    assert driver.mailbox.next(0) == end
    assert (driver.mailbox.next(0) is None) is (aborted >= 3)


def test_a_replay_of_one_sink_does_not_replace_that_of_another() -> None:
    driver = Driver()
    of_other = replace(replay(2), participant=ParticipantName("other"))
    for instruction in (replay(2), of_other, replay(2)):
        driver.mailbox.deliver(instruction)
    assert [driver.mailbox.next(0) for _ in range(3)] == [replay(2), of_other, None]


def test_lost_slots_are_replayed_once_after_later_checkpoints_were_aborted() -> None:
    driver = Driver()
    driver.mailbox.deliver(replay(2))
    driver.mailbox.deliver(abort(3))
    driver.mailbox.deliver(trigger(4))
    assert [driver.mailbox.next(0) for _ in range(4)] == [abort(3), replay(2), trigger(4), None]


def test_a_requested_checkpoint_is_known_by_its_number() -> None:
    driver = Driver()
    driver.mailbox.deliver(replace(trigger(3), at_once=True))
    driver.mailbox.deliver(trigger(3))
    assert [driver.mailbox.hurried(CheckpointId(number)) for number in (2, 3, 4)] == [False, True, False]
    driver.mailbox.running(CheckpointId(4))
    driver.mailbox.deliver(replace(trigger(4), at_once=True))
    assert driver.mailbox.hurried(CheckpointId(4)), "asked for while it runs"


def test_a_cancelled_job_stops_too() -> None:
    driver = Driver()
    assert not driver.mailbox.cancelled
    driver.mailbox.deliver(answers.Stop())
    assert not driver.mailbox.cancelled
    driver = Driver()
    driver.mailbox.deliver(answers.Cancel())
    assert driver.mailbox.cancelled
    assert driver.mailbox.stopping


def test_a_waiting_thread_raises_an_error_that_another_thread_found() -> None:
    driver = Driver()
    timer = threading.Timer(0.01, driver.mailbox.fail, [GenerationFailedError("the settler failed")])
    timer.start()
    with pytest.raises(GenerationFailedError, match="the settler failed"):
        driver.mailbox.wait(lambda: False, 30)
    with pytest.raises(GenerationFailedError):
        driver.mailbox.raise_error()
    assert driver.interrupts == 0, "nothing runs"


def test_a_wait_ends_with_its_event_or_its_timeout() -> None:
    driver, seen = Driver(), list[int]()
    assert not driver.mailbox.wait(lambda: bool(seen), 0.01)

    def arrive() -> None:
        seen.append(1)
        driver.mailbox.wake()

    threading.Timer(0.01, arrive).start()
    assert driver.mailbox.wait(lambda: bool(seen), None)


def test_the_newest_checkpoint_that_was_decided_against_is_remembered() -> None:
    driver = Driver()
    assert driver.mailbox.last_aborted() is None
    driver.mailbox.deliver(abort(3))
    driver.mailbox.next(0)
    assert driver.mailbox.last_aborted() == 3


def test_a_repeated_abort_is_handled_once_and_is_not_forgotten() -> None:
    driver = Driver()
    driver.mailbox.deliver(abort(3))
    assert driver.mailbox.next(0) == abort(3)
    driver.mailbox.deliver(abort(3))
    assert driver.mailbox.next(0) is None
    assert driver.mailbox.aborted(CheckpointId(3))
    assert not driver.mailbox.aborted(CheckpointId(4))


def test_what_is_refuted_is_forgotten_and_what_is_newer_is_not() -> None:
    driver = Driver()
    end = answers.Abort(checkpoint=CheckpointId(4), base=CheckpointId(2), reason=AbortReason.CANCELLED, detail="")
    later = answers.Trigger(checkpoint=CheckpointId(6), base=CheckpointId(2))
    driver.mailbox.deliver(end)
    driver.mailbox.deliver(later)
    heard = [driver.mailbox.against(CheckpointId(number)) for number in range(2, 7)]
    assert heard == [(), (end, later), (end, later), (later,), ()]
    driver.mailbox.deliver(replace(end))
    driver.mailbox.refute(heard[1])
    again = driver.mailbox.against(CheckpointId(4))
    assert again == (end,), "said again since"
    driver.mailbox.refute(again)
    assert not driver.mailbox.aborted(CheckpointId(4))
    assert driver.mailbox.next(0) is None


def test_only_the_running_checkpoint_is_interrupted() -> None:
    driver = Driver()
    driver.mailbox.running(CheckpointId(4))
    driver.mailbox.deliver(abort(3))
    assert driver.interrupts == 0
    driver.mailbox.deliver(abort(4))
    assert driver.interrupts == 1


def test_a_completion_goes_to_the_settler_while_the_main_thread_is_busy() -> None:
    driver = Driver()
    driver.mailbox.deliver(answers.Complete(checkpoint=CheckpointId(2), amendment=1))
    assert driver.completed == [(2, 1)]


@pytest.mark.parametrize(
    "older",
    [
        answers.Trigger(checkpoint=CheckpointId(9), base=CheckpointId(4)),
        answers.Abort(checkpoint=CheckpointId(9), base=CheckpointId(4), reason=AbortReason.EXPIRED, detail=""),
        answers.Complete(checkpoint=CheckpointId(4), amendment=0),
        replay(4),
    ],
    ids=lambda instruction: type(instruction).__name__,
)
def test_a_coordinator_with_an_older_state_is_not_followed(older: answers.Instruction) -> None:
    driver = Driver()
    driver.mailbox.advance(CheckpointId(3))
    driver.mailbox.deliver(answers.Complete(checkpoint=CheckpointId(4), amendment=0))
    driver.mailbox.deliver(answers.Trigger(checkpoint=CheckpointId(6), base=CheckpointId(5)))
    driver.mailbox.deliver(older)
    with pytest.raises(HaltedError, match="an older copy"):
        driver.mailbox.next(0)
    assert driver.completed == [(4, 0)]


def test_the_first_error_wins_and_interrupts() -> None:
    driver = Driver()
    driver.mailbox.running(CheckpointId(1))
    driver.mailbox.fail(FencedError("newer generation"))
    driver.mailbox.deliver(answers.Fail(reason="later"))
    assert driver.interrupts == 2
    with pytest.raises(FencedError):
        driver.mailbox.next(0)


def test_failing_and_halting_are_different_ends() -> None:
    failed, halted = Driver(), Driver()
    failed.mailbox.deliver(answers.Fail(reason="too many"))
    halted.mailbox.deliver(answers.Halt(reason="lost"))
    with pytest.raises(GenerationFailedError, match="too many"):
        failed.mailbox.next(0)
    with pytest.raises(HaltedError, match="lost"):
        halted.mailbox.next(0)


def test_a_stop_ends_a_wait() -> None:
    driver = Driver()
    threading.Timer(0.01, driver.mailbox.deliver, [answers.Stop()]).start()
    assert driver.mailbox.wait(lambda: driver.mailbox.stopping, 30)


def test_an_abort_counts_as_done_when_the_main_thread_takes_its_next_instruction() -> None:
    driver = Driver()
    driver.mailbox.deliver(abort(3))
    driver.mailbox.deliver(trigger(4))
    assert driver.mailbox.carried_out() == 0
    assert driver.mailbox.next(0) == abort(3)
    assert driver.mailbox.carried_out() == 0
    assert driver.mailbox.next(0) == trigger(4)
    assert driver.mailbox.carried_out() == 3


def test_that_the_generation_is_over_matters_more_than_why_it_failed() -> None:
    for over in (GenerationEndedError("no driver has the job"), FencedError("a newer generation owns the job")):
        driver = Driver()
        driver.mailbox.deliver(answers.Fail(reason="too many failures"))
        driver.mailbox.fail(over)
        driver.mailbox.fail(GenerationFailedError("later"))
        with pytest.raises(type(over)):
            driver.mailbox.next(0)


def test_a_halted_driver_leaves_halted_even_when_its_generation_was_ended_meanwhile() -> None:
    driver = Driver()
    driver.mailbox.deliver(answers.Halt(reason="a person must decide"))
    driver.mailbox.fail(FencedError("the job is halted"))
    with pytest.raises(HaltedError):
        driver.mailbox.next(0)
