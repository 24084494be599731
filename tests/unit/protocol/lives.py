"""Jobs in a given state, built with scenario commands, and the core's response to one more event."""

from typing import TypeVar

from onceward.protocol.answers import Answer
from onceward.protocol.core import step
from onceward.protocol.facts import Fact
from onceward.protocol.settings import CheckpointSettings
from tests.support.player import Player

__all__ = ["BEGUN", "UNSETTLED", "after", "one", "said"]

F = TypeVar("F")
SETTINGS = CheckpointSettings(interval="1h", lease="20s", tolerable_failed_checkpoints=9)
BEGUN = ("open d1", "watch", "ack 1 source on 0 at 1", "ack 1 sink on 0")
UNSETTLED = (*BEGUN, "request r checkpoint", "ack 2 source on 1 at 2", "ack 2 sink on 1 slots 0")


def after(*commands: str, settings: CheckpointSettings = SETTINGS) -> Player:
    player = Player(settings)
    for command in commands:
        player.play(command)
    return player


def said(player: Player, command: str) -> tuple[Answer, tuple[Fact, ...]]:
    player.state, ready = step(player.state, player.event(command))
    return ready.answer, ready.facts


def one(facts: tuple[Fact, ...], kind: type[F]) -> F:
    (found,) = (fact for fact in facts if isinstance(fact, kind))
    return found
