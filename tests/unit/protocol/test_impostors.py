"""Calls for the current generation by a process that is not its driver."""

from dataclasses import replace

import pytest

from onceward.protocol.answers import Verdict
from onceward.protocol.core import step
from onceward.protocol.events import Call
from onceward.protocol.values import COORDINATOR
from tests.unit.protocol.lives import UNSETTLED, after

COMMANDS = (
    "watch",
    "renew",
    "ack 3 source on 2 at 3",
    "ack 3 sink on 2",
    "decline 3 sink",
    "settle 2 sink 0=lost",
    "amend 2 sink 0 slots 0",
    "close halted",
)
"""One of each call of a driver, while checkpoint 3 is asked for and checkpoint 2 has to be settled."""


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("owner", ["d1", COORDINATOR], ids=["a driver", "the coordinator"])
def test_a_call_that_knows_only_the_number_of_the_generation_changes_nothing(command: str, owner: str) -> None:
    player = after(*UNSETTLED, "request r2 checkpoint")
    state = replace(player.state, durable=replace(player.state.durable, driver=owner))
    event = player.event(command)
    assert isinstance(event, Call)
    unchanged, ready = step(state, replace(event, driver="d2"))
    assert unchanged == state
    assert (ready.answer.verdict, ready.answer.may_return, ready.facts) == (Verdict.FENCED, False, ())
    assert "another process" in ready.answer.detail
    assert ready.note is not None, "it is not in the history"


@pytest.mark.parametrize("command", COMMANDS)
def test_the_driver_itself_is_answered_as_before(command: str) -> None:
    player = after(*UNSETTLED, "request r2 checkpoint")
    event = player.event(command)
    assert isinstance(event, Call)
    assert step(player.state, replace(event, driver="d1")) == step(player.state, event)


def test_a_former_driver_may_come_back_as_before() -> None:
    """It has its own generation's secret, not the present one's: the number decides."""
    player = after(*UNSETTLED)
    event = player.event("renew")
    assert isinstance(event, Call)
    ended = replace(player.state, durable=replace(player.state.durable, driver=None))
    _, ready = step(ended, replace(event, driver="d1"))
    assert (ready.answer.verdict, ready.answer.may_return) == (Verdict.FENCED, True)
