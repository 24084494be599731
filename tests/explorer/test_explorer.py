"""The explorer finds no violation in the core, and finds the violations of broken ones."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from onceward.protocol import checkpoints, core, generations, settling
from onceward.protocol import state as states
from onceward.protocol.answers import Complete, Instruction, Verdict
from onceward.protocol.durable import Durable
from onceward.protocol.events import CloseJob
from onceward.protocol.facts import CheckpointRestored
from onceward.protocol.state import JobState
from onceward.protocol.values import NO_CHECKPOINT
from onceward.sinks.lake.control import committing
from tests.explorer import drivers, moves, tables
from tests.explorer.coordinator import Reply
from tests.explorer.moves import Moves
from tests.explorer.report import scenario, summary
from tests.explorer.search import explore
from tests.explorer.ways_out import explore_ways_out
from tests.explorer.world import WORLDS, Bounds, Call, Driver, Phase
from tests.support import player
from tests.support.oracle import Invariant

pytestmark = pytest.mark.long

SMALLER = WORLDS | {
    "checkpoints": replace(WORLDS["checkpoints"], checkpoints=3, crashes=1, messages=1, store=0),
    "orphans": replace(WORLDS["orphans"], crashes=1),
    "requests": replace(WORLDS["requests"], checkpoints=2, messages=0, declines=0, timeouts=0),
    "staying": replace(WORLDS["staying"], checkpoints=3, messages=0),
    "two sinks": replace(WORLDS["two sinks"], messages=0, timeouts=1),
    "a table after a topic": replace(WORLDS["a table after a topic"], messages=0),
    "a table before a topic": replace(WORLDS["a table before a topic"], messages=0),
    "a database after a topic": replace(WORLDS["a database after a topic"], messages=0),
    "orphans of a topic and a table": replace(WORLDS["orphans of a topic and a table"], generations=2),
    "leaders": replace(WORLDS["leaders"], checkpoints=2, messages=0),
    "leaders of orphans": replace(WORLDS["leaders of orphans"], crashes=0),
    "copies": replace(WORLDS["copies"], crashes=0),
    "copies that lack an abort": replace(WORLDS["copies that lack an abort"], generations=1),
    "copies of orphans": replace(WORLDS["copies of orphans"], generations=2),
    "leaders of copies": replace(WORLDS["leaders of copies"], generations=1),
    "leaders of copies after a restart": replace(WORLDS["leaders of copies after a restart"], checkpoints=1),
}
"""The worlds of `make explore` with fewer faults: they have a small part of its states."""
TINY = Bounds(checkpoints=3, crashes=1, messages=1, store=0, declines=0, timeouts=0)


def test_no_path_through_a_tiny_world_breaks_an_invariant() -> None:
    result = explore(Bounds(checkpoints=2, crashes=1, messages=1))
    assert result.broken is None, scenario(result.broken)
    assert result.complete
    assert result.states > 5_000, summary(result)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", WORLDS)
def test_no_path_within_the_bounds_breaks_an_invariant(name: str) -> None:
    result = explore(SMALLER[name])
    assert result.broken is None, scenario(result.broken)
    assert result.complete
    assert result.states > 20_000, summary(result)


def test_every_situation_of_a_checkpoint_with_two_slots_has_a_way_out() -> None:
    explored = explore_ways_out(depth=4)
    assert explored.violation is None, explored.scenario
    assert explored.situations > 300


def test_a_dead_end_is_found_and_shown_as_a_scenario_that_plays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here a restore keeps what was lost of an unreadable checkpoint."""

    def keep(original: Callable[..., Any], durable: Durable, fact: Any) -> Durable:
        after: Durable = original(durable, fact)
        if isinstance(fact, CheckpointRestored):
            return replace(after, replaying=durable.replaying, lost=durable.lost)
        return after

    _patched(states, "evolve", keep)(monkeypatch)
    explored = explore_ways_out(depth=4)
    assert explored.violation is not None
    assert "> damage" in explored.scenario
    assert player.play(explored.scenario) == explored.scenario


def _patched(target: Any, name: str, change: Callable[..., Any]) -> Callable[[pytest.MonkeyPatch], None]:
    """Wrap a function of the core; ``change`` receives the original and its arguments."""
    original = getattr(target, name)

    def changed(*args: Any) -> Any:
        return change(original, *args)

    def break_core(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(target, name, changed)
        if hasattr(player, name):
            patch.setattr(player, name, changed)

    return break_core


def _forget_pending(original: Callable[..., Any], durable: Durable, now: float) -> Any:
    return original(replace(durable, pending=None), now)


def _commit_before_the_decision(original: Callable[..., Any], state: JobState) -> tuple[Instruction, ...]:
    early = original(state)
    if state.durable.pending is not None and state.all_answered:
        early += (Complete(checkpoint=state.durable.pending.id),)
    return tuple(early)


BROKEN: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Invariant]] = {
    "decide() ignores that the predecessor is not settled": (
        lambda patch: patch.setattr(JobState, "settled", property(lambda _: True)),
        Invariant.IN_ORDER,
    ),
    "acknowledge() accepts a stale generation": (
        _patched(checkpoints, "may_drive", lambda _, state, generation: state.durable.driver is not None),
        Invariant.STALE,
    ),
    "settle() accepts a stale generation": (
        _patched(settling, "may_report", lambda _, state, generation: True),
        Invariant.STALE,
    ),
    "restart() forgets the pending checkpoint": (
        _patched(states, "restart", _forget_pending),
        Invariant.ONE_DECISION,
    ),
    "wanted() has the driver commit before the decision": (
        _patched(core, "wanted", _commit_before_the_decision),
        Invariant.ONE_DECISION,
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_core_is_found_and_shown_as_a_scenario_that_plays(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    break_core, invariant = BROKEN[name]
    break_core(monkeypatch)
    result = explore(TINY)
    assert result.broken is not None
    assert result.broken.violation.invariant is invariant
    text = scenario(result.broken)
    assert player.play(text) == text


def test_staying_tasks_that_outlive_their_checkpoint_are_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here they read on from a checkpoint that was aborted."""
    monkeypatch.setattr(drivers, "_without_tasks", lambda driver, kafka: (driver, kafka))
    result = explore(SMALLER["staying"])
    assert result.broken is not None
    assert result.broken.violation.invariant is Invariant.TILES
    assert "its tasks have written from" in scenario(result.broken)


def test_a_job_whose_second_sink_does_not_count_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here one sink settles the checkpoint for both."""

    def settled_by_one(original: Callable[..., Any], state: JobState, now: float) -> Any:
        completed, known = state.durable.completed, max(state.settled_slots.values(), key=len, default=frozenset())
        assert completed is not None
        return original(replace(state, settled_slots=dict.fromkeys(completed.snapshots, known)), now)

    _patched(settling, "settled_if_proved", settled_by_one)(monkeypatch)
    result = explore(replace(TINY, sinks=2))
    assert result.broken is not None
    assert result.broken.violation.invariant is Invariant.SETTLED
    text = scenario(result.broken)
    assert "and other" in text
    assert player.play(text) == text


def _without_a_fence(write: Callable[[committing.Change], str], change: committing.Change) -> str:
    return "nothing" if change.gone else write(change)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "broken", "world", "text"),
    [
        ("_proved", lambda *_: None, "a table before a topic", "comes into the table again"),
        ("_write", partial(_without_a_fence, committing._write), "a table after a topic", "may still arrive"),
    ],
    ids=["does not look whether a commit is there", "calls lost what is gone, without a fence"],
)
def test_a_table_is_found_to_hold_too_much(
    name: str, broken: Callable[..., Any], world: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here the sink of tables does something that it must not do."""
    monkeypatch.setattr(committing, name, broken)
    result = explore(SMALLER[world])
    assert result.broken is not None
    assert result.broken.violation.invariant is Invariant.TILES
    assert text in result.broken.violation.text
    shown = scenario(result.broken)
    assert "to the table" in shown
    assert player.play(shown) == shown


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rules", "rule", "world"),
    [
        (drivers, "has_claimed", "a table after a topic"),
        (drivers, "is_own", "a table after a topic"),
        (tables, "is_owner", "a database after a topic"),
    ],
)
def test_a_commit_to_a_table_is_found_out_without_each_rule_of_the_claim(
    rules: Any, rule: str, world: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rules, rule, lambda *_: True)
    _finds_a_broken_claim(SMALLER[world])


@pytest.mark.parametrize("world", ["leaders", "leaders of copies"])
@pytest.mark.parametrize("protection", ["fenced", "ignored"])
def test_an_outdated_leader_is_found_out_without_each_protection(
    protection: str, world: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store refuses its writes, and drivers that know of its successor ignore its answers."""
    monkeypatch.setattr(Moves, protection, False)
    result = explore(SMALLER[world])
    assert result.broken is not None
    assert result.broken.violation.invariant is Invariant.CONTRACT
    text = scenario(result.broken)
    assert "the former leader answers" in text
    assert player.play(text) == text


def _patched_driver(name: str, value: object) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda patch: patch.setattr(drivers, name, lambda *_: value)


CLAIMS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "the coordinator compares no claim": _patched(generations, "claim_refusal", lambda *_: None),
    "a driver takes a claim that has changed": _patched_driver("is_unchanged", True),
    "a driver renews a claim that is not its own": _patched_driver("is_own", True),
    "a commit does not wait for the claim": _patched_driver("has_claimed", True),
}
"""What protects the output from an older copy of the store, left out in turn."""


@pytest.mark.parametrize("name", CLAIMS)
def test_a_rule_of_the_claim_is_found_broken_without_each_protection(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    CLAIMS[name](monkeypatch)
    _finds_a_broken_claim(SMALLER["copies"])


@pytest.mark.slow
@pytest.mark.parametrize("name", CLAIMS)
def test_a_rule_of_the_claim_is_found_broken_while_the_coordinator_stands_in(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    CLAIMS[name](monkeypatch)
    _finds_a_broken_claim(SMALLER["copies of orphans"])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CLAIMS if "renews" not in name])
def test_a_rule_of_the_claim_is_found_broken_while_an_outdated_leader_answers(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    CLAIMS[name](monkeypatch)
    _finds_a_broken_claim(SMALLER["leaders of copies"])


def _finds_a_broken_claim(bounds: Bounds) -> None:
    result = explore(bounds)
    assert result.broken is not None
    assert result.broken.violation.invariant is Invariant.CLAIMED
    text = scenario(result.broken)
    assert player.play(text) == text


@pytest.mark.slow
@pytest.mark.parametrize("name", CLAIMS)
def test_a_record_becomes_visible_twice_without_each_protection(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    CLAIMS[name](monkeypatch)
    _finds_a_record_twice(replace(SMALLER["copies"], output_only=True))


@pytest.mark.slow
def test_a_record_becomes_visible_twice_if_a_driver_follows_an_older_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here it takes instructions that name an older checkpoint than it knows. The copy gives up a checkpoint that is
    visible, and the driver writes it again under its own claim."""
    monkeypatch.setattr(drivers, "is_older", lambda *_: False)
    _finds_a_record_twice(SMALLER["copies that lack an abort"])


def _finds_a_record_twice(bounds: Bounds) -> None:
    result = explore(bounds)
    assert result.broken is not None
    assert result.broken.violation.invariant is Invariant.TILES
    assert result.broken.violation.text == "record 0 becomes visible after 1 records"
    text = scenario(result.broken)
    assert "> promote" in text
    assert player.play(text) == text


@pytest.mark.slow
def test_a_job_ends_in_an_older_copy_if_a_driver_does_not_say_what_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = Bounds(
        checkpoints=2,
        generations=1,
        crashes=0,
        messages=0,
        store=0,
        declines=0,
        timeouts=0,
        requests=1,
        promotions=1,
        output_only=True,
    )
    result = explore(bounds)
    assert result.broken is None, scenario(result.broken)

    def ignore_what_it_knows(original: Callable[..., Any], state: JobState, event: CloseJob) -> Any:
        return original(state, replace(event, completed=NO_CHECKPOINT))

    _patched(generations, "close_job", ignore_what_it_knows)(monkeypatch)
    result = explore(bounds)
    assert result.broken is not None
    assert result.broken.violation.text == "the job has ended after 0 records, 1 are visible"
    text = scenario(result.broken)
    assert player.play(text) == text


def test_a_driver_that_does_not_ask_again_aborts_what_a_copy_completes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver hears of an abort while its acknowledgement is under way. The copy does not know of the abort, asks
    for the checkpoint again and completes it; then the driver carries out the abort."""
    monkeypatch.setattr(drivers, "_without_word_against", lambda driver: driver)
    result = explore(SMALLER["one driver of a copy that lacks an abort"])
    assert result.broken is not None
    assert result.broken.violation.invariant is Invariant.NEVER_CHANGES
    assert scenario(result.broken).endswith("# driver 1 takes the abort of checkpoint 2\n")


def test_an_id_that_came_to_nothing_and_is_triggered_again_is_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older copy of the store issues it again, and lets the generation fail; elsewhere the trigger is only late."""
    declined = set[tuple[Verdict, bool]]()

    def noting(driver: Driver, call: Call, reply: Reply) -> Any:
        after = drivers.answered(driver, call, reply)
        if driver.phase is Phase.REFUSING and isinstance(after, Driver):
            declined.add((reply.verdict, after.over and not driver.over))
        return after

    monkeypatch.setattr(moves, "answered", noting)
    result = explore(SMALLER["copies that lack an abort"])
    assert result.broken is None, scenario(result.broken)
    assert (Verdict.ACCEPTED, True) in declined
    assert {verdict for verdict, fails in declined if fails} == {Verdict.ACCEPTED}
