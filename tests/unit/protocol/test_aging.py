"""The core enforces how long a checkpoint may wait for its base, exactly to the deadline."""

import pytest

from onceward.protocol.core import next_deadline
from onceward.protocol.settings import CheckpointSettings
from tests.support.player import Player


@pytest.fixture
def waiting() -> Player:
    """Checkpoint 2 is acknowledged, its base is not settled, and it can be committed for a minute."""
    player = Player(CheckpointSettings(interval="10s", lease="10min", orphan_grace="20min"))
    for command in (
        "open d1",
        "watch",
        "ack 1 source on 0 at 10",
        "ack 1 sink on 0 slots 0",
        "after 10",
        "ack 2 source on 1 at 20",
        "ack 2 sink on 1 slots 0 good 60",
    ):
        player.play(command)
    return player


def test_the_clock_wakes_the_job_when_the_time_is_over(waiting: Player) -> None:
    assert next_deadline(waiting.state) == waiting.now + 60


def test_a_base_that_is_settled_in_time_completes_what_waited_for_it(waiting: Player) -> None:
    waiting.now += 59.9
    assert "  fact completed 2" in waiting.play("settle 1 sink 0=committed")


def test_a_base_settled_after_the_timeout_does_not_complete_its_successor_even_without_a_tick(
    waiting: Player,
) -> None:
    waiting.now += 60
    said = waiting.play("settle 1 sink 0=committed")
    assert "  fact settled 1" in said
    assert "  fact aborted 2: TOO_OLD" in said


@pytest.mark.parametrize("settled", [False, True])
def test_the_reason_names_an_unsettled_base_only_if_it_is_that(waiting: Player, settled: bool) -> None:
    if settled:
        for command in ("settle 1 sink 0=committed", "after 10", "ack 3 source on 2 at 30"):
            waiting.play(command)
        waiting.play("settle 2 sink 0=committed")
        waiting.play("ack 3 sink on 2 slots 0 good 0")
    else:
        waiting.play("after 60")
    aborted = waiting.state.durable.aborted
    assert aborted is not None
    assert ("its base was not settled" in aborted.detail) is not settled
    assert ("too old when it was acknowledged" in aborted.detail) is settled
