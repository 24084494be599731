import threading

import pytest

from coordinator.errors import FencedError, GenerationEndedError, HaltedError
from coordinator.pipeline.mailbox import GenerationFailedError, Mailbox
from coordinator.protocol.answers import Abort, Complete, Fail, Halt, Instruction, Replay, Stop, Trigger
from coordinator.protocol.facts import AbortReason
from coordinator.protocol.values import CheckpointId, ParticipantName


class Driver:
    """A mailbox and what it handed on."""

    def __init__(self) -> None:
        self.completed: list[tuple[int, int]] = []
        self.interrupts = 0
        self.mailbox = Mailbox(on_complete=lambda *what: self.completed.append(what), on_interrupt=self._interrupt)

    def _interrupt(self) -> None:
        self.interrupts += 1


def trigger(checkpoint: int) -> Trigger:
    return Trigger(checkpoint=CheckpointId(checkpoint), base=CheckpointId(checkpoint - 1))


def abort(checkpoint: int) -> Abort:
    return Abort(
        checkpoint=CheckpointId(checkpoint), base=CheckpointId(checkpoint - 1), reason=AbortReason.EXPIRED, detail=""
    )


def test_a_trigger_wakes_the_main_thread() -> None:
    driver = Driver()
    timer = threading.Timer(0.01, driver.mailbox.deliver, [trigger(3)])
    timer.start()
    assert driver.mailbox.next(30) == trigger(3)
    assert driver.mailbox.next(0) is None


def test_an_abort_that_overtakes_its_trigger_ends_it() -> None:
    driver = Driver()
    driver.mailbox.deliver(trigger(3))
    driver.mailbox.deliver(abort(3))
    assert driver.mailbox.next(0) == abort(3)
    assert driver.mailbox.next(0) is None


def test_a_repeated_abort_is_handled_once_and_is_not_forgotten() -> None:
    driver = Driver()
    driver.mailbox.deliver(abort(3))
    assert driver.mailbox.next(0) == abort(3)
    driver.mailbox.deliver(abort(3))
    assert driver.mailbox.next(0) is None
    assert driver.mailbox.aborted(CheckpointId(3))
    assert not driver.mailbox.aborted(CheckpointId(4))


def test_only_the_running_checkpoint_is_interrupted() -> None:
    driver = Driver()
    driver.mailbox.running(CheckpointId(4))
    driver.mailbox.deliver(abort(3))
    assert driver.interrupts == 0
    driver.mailbox.deliver(abort(4))
    assert driver.interrupts == 1


def test_a_completion_goes_to_the_settler_while_the_main_thread_is_busy() -> None:
    driver = Driver()
    driver.mailbox.deliver(Complete(checkpoint=CheckpointId(2), amendment=1))
    assert driver.completed == [(2, 1)]


@pytest.mark.parametrize(
    "older",
    [
        Trigger(checkpoint=CheckpointId(9), base=CheckpointId(4)),
        Abort(checkpoint=CheckpointId(9), base=CheckpointId(4), reason=AbortReason.EXPIRED, detail=""),
        Complete(checkpoint=CheckpointId(4), amendment=0),
        Replay(checkpoint=CheckpointId(4), participant=ParticipantName("sink"), slots=frozenset({0}), amendment=0),
    ],
    ids=lambda instruction: type(instruction).__name__,
)
def test_a_coordinator_that_knows_less_than_before_is_not_followed(older: Instruction) -> None:
    driver = Driver()
    driver.mailbox.advance(CheckpointId(3))
    driver.mailbox.deliver(Complete(checkpoint=CheckpointId(4), amendment=0))
    driver.mailbox.deliver(Trigger(checkpoint=CheckpointId(6), base=CheckpointId(5)))
    driver.mailbox.deliver(older)
    with pytest.raises(HaltedError, match="an older copy"):
        driver.mailbox.next(0)
    assert driver.completed == [(4, 0)]


def test_the_first_error_wins_and_interrupts() -> None:
    driver = Driver()
    driver.mailbox.running(CheckpointId(1))
    driver.mailbox.fail(FencedError("newer generation"))
    driver.mailbox.deliver(Fail(reason="later"))
    assert driver.interrupts == 2
    with pytest.raises(FencedError):
        driver.mailbox.next(0)


def test_failing_and_halting_are_different_ends() -> None:
    failed, halted = Driver(), Driver()
    failed.mailbox.deliver(Fail(reason="too many"))
    halted.mailbox.deliver(Halt(reason="lost"))
    with pytest.raises(GenerationFailedError, match="too many"):
        failed.mailbox.next(0)
    with pytest.raises(HaltedError, match="lost"):
        halted.mailbox.next(0)


def test_a_stop_ends_a_wait() -> None:
    driver = Driver()
    threading.Timer(0.01, driver.mailbox.deliver, [Stop()]).start()
    assert driver.mailbox.wait(lambda: driver.mailbox.stopping, 30)


def test_an_abort_counts_as_carried_out_when_the_main_thread_asks_for_what_is_next() -> None:
    driver = Driver()
    driver.mailbox.deliver(abort(3))
    driver.mailbox.deliver(trigger(4))
    assert driver.mailbox.carried_out() == 0
    assert driver.mailbox.next(0) == abort(3)
    assert driver.mailbox.carried_out() == 0
    assert driver.mailbox.next(0) == trigger(4)
    assert driver.mailbox.carried_out() == 3


def test_that_the_generation_is_over_matters_more_than_why_it_failed() -> None:
    for over in (GenerationEndedError("nobody has the job"), FencedError("a newer generation owns the job")):
        driver = Driver()
        driver.mailbox.deliver(Fail(reason="too many failures"))
        driver.mailbox.fail(over)
        driver.mailbox.fail(GenerationFailedError("later"))
        with pytest.raises(type(over)):
            driver.mailbox.next(0)


def test_a_halted_driver_leaves_halted_even_when_its_generation_was_ended_meanwhile() -> None:
    driver = Driver()
    driver.mailbox.deliver(Halt(reason="a person must decide"))
    driver.mailbox.fail(FencedError("the job is halted"))
    with pytest.raises(HaltedError):
        driver.mailbox.next(0)
