"""Two sinks of one job: on one system they share its claim and its leftovers, on two each has its own."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, TypeVar, cast
from unittest.mock import patch

import pytest

from onceward import KafkaSink
from onceward.common.errors import HaltedError
from onceward.connectors.interfaces import JobContext, Resource
from onceward.connectors.tasks import Vote
from onceward.driver.journal import Journal
from onceward.driver.origins import slot_origins
from onceward.driver.outputs import OpenOutput, Outputs, place_of
from onceward.driver.runtime import Threads
from onceward.driver.settler import Settler
from onceward.protocol.answers import Answer, Verdict
from onceward.protocol.committing import Part, PreCommitted
from onceward.protocol.values import (
    CheckpointId,
    Claim,
    Committable,
    Generation,
    JobName,
    OnLost,
    Outcome,
    ParticipantName,
    Settlement,
)
from onceward.sinks.kafka.control.clock import Clock
from onceward.sinks.kafka.control.transactions import State
from onceward.sinks.kafka.driver.session import KafkaSinkSession
from tests.support.documents import committable
from tests.support.kafka_model import Settings
from tests.support.kafka_model.bench import Bench, Ids
from tests.support.running_job import SINK
from tests.unit.driver.settling import Queue

T = TypeVar("T")

JOB, SEVEN = JobName("orders"), CheckpointId(7)
FIRST, SECOND = ParticipantName("first"), ParticipantName("second")
CLAIM = Claim(store_id="store", generation=Generation(2), completed=SEVEN, holder="driver")

ORIGINS = slot_origins([[{"partition": 0}]], str)


def modelled(bench: Bench, name: str) -> KafkaSinkSession:
    """The real sink on modelled brokers."""
    sink = KafkaSink("simulated:9092", topic="out", name=name)
    context = JobContext(job=JOB, checkpoint_timeout=timedelta(minutes=1))
    clock = Clock(monotonic=bench.transport.now, wait=bench.wait)
    return KafkaSinkSession(sink, context, bench.control, bench.control.cluster_id(), clock=clock)


def vote(ids: Ids) -> Vote:
    body = {"id": ids[0], "token": "token", "topics": {"out": 1}, "timeout_ms": 60_000}
    return Vote(slot=0, attempt=0, records=1, bytes=10, body=body)


def test_two_kafka_sinks_on_one_cluster_do_not_fence_each_other() -> None:
    bench = Bench(Settings(brokers=(1, 2, 3)))
    bench.wait(5)
    sinks = [modelled(bench, name) for name in ("first", "second")]
    outputs = Outputs(JOB, [OpenOutput(sink=sink, system=sink.system()) for sink in sinks])
    outputs.begin_generation(Generation(2))
    mine, theirs = (bench.open(f"orders.{name}.2.0123abcd.0") for name in ("first", "second"))
    losers = [bench.open(f"orders.{name}.2.4567cdef.0") for name in ("first", "second")]
    votes = {FIRST: [vote(mine)], SECOND: [vote(theirs)]}
    made = outputs.pre_commit(SEVEN, votes, dict.fromkeys(votes, ORIGINS), keep={})
    bench.wait(1)
    assert [bench.view(ids[0]).state for ids in (mine, theirs)] == [State.ONGOING] * 2
    assert all(bench.view(ids[0]).state is not State.ONGOING for ids in losers)
    held = {name: each.committables for name, each in made.items()}
    # the first one writes alone, as for lost slots
    again = outputs.pre_commit(SEVEN, {FIRST: [vote(mine)]}, {FIRST: ORIGINS}, keep=held)
    assert list(again) == [FIRST]
    bench.wait(1)
    assert bench.view(theirs[0]).state is State.ONGOING
    assert outputs.end_leftovers(keep=held) == []
    assert outputs.end_leftovers(keep={FIRST: held[FIRST]}) == [theirs[0]]


class System:
    """Sink and committer, which write down what they are asked."""

    def __init__(self, asked: list[str], system: str, name: ParticipantName, on_lost: OnLost = OnLost.REPLAY) -> None:
        self._asked, self._system = asked, system
        self.participant = replace(SINK, name=name, on_lost=on_lost)
        self.claim: Claim | None = None
        self.outcome = Outcome.COMMITTED

    def id(self) -> str:
        return self._system

    def read_claim(self, _job: JobName) -> Claim | None:
        return self.claim

    def take_claim(self, _job: JobName, _claim: Claim, seen: Sequence[Claim]) -> None:
        self._asked.append(f"{self._system} is claimed in place of {[one.completed for one in seen]}")

    def renew_claim(self, claim: Claim, **_: Any) -> bool:
        self._asked.append(f"{self._system} is claimed")
        return True

    def pre_commit(self, _checkpoint: CheckpointId, _votes: Any, _origins: Any, *, leftovers: bool) -> PreCommitted:
        self._asked.append(f"{self.participant.name} pre-commits{' and lists' if leftovers else ''}")
        return PreCommitted(committables=(committable(0),))

    def sweep(self, _job: JobName, *, keep: Sequence[Committable], **_: Any) -> Sequence[str]:
        self._asked.append(f"{self._system} is swept beside {len(keep)}")
        return ()

    def commit(self, _author: Any, committables: Sequence[Committable], **_: Any) -> Sequence[Settlement]:
        self._asked.append(f"{self.participant.name} commits")
        return [Settlement(slot=one.slot, outcome=self.outcome, evidence="seen") for one in committables]

    shared = ""

    def together(self, _committable: Committable) -> str:
        return self.shared

    def commit_together(self, parts: Sequence[Part], **_: Any) -> Sequence[Sequence[Settlement]]:
        systems: list[Any] = [one.system for one in parts]
        self._asked.append(f"{' and '.join(one.participant.name for one in systems)} commit together")
        return [
            [Settlement(slot=one.slot, outcome=of.outcome, evidence="seen") for one in part.committables]
            for of, part in zip(systems, parts, strict=True)
        ]

    def describe(self, _committable: Committable) -> str:
        return f"of {self.participant.name}"

    def on_settled(self, _checkpoint: CheckpointId, committables: Sequence[Committable]) -> None:
        self._asked.append(f"{self.participant.name} is settled with {len(committables)}")


def two(
    asked: list[str],
    *systems: str,
    on_lost: OnLost = OnLost.REPLAY,
    runtime: Threads | None = None,
    journal: Journal | None = None,
) -> tuple[Outputs, System, System]:
    first, second = (System(asked, *pair, on_lost) for pair in zip(systems, (FIRST, SECOND), strict=True))
    given: Any = [first, second]
    opened = [OpenOutput(sink=one, system=one) for one in given]
    return Outputs(JOB, opened, runtime or InOrder(), journal), first, second


class InOrder(Threads):
    """Asks one system after the other, so that a test sees one order."""

    def beside(self, call: Callable[[], T]) -> Callable[[], T]:
        return call


def test_leftovers_of_a_system_are_ended_once_its_last_sink_has_pre_committed() -> None:
    votes: dict[ParticipantName, Sequence[Vote]] = {FIRST: [], SECOND: []}
    asked: list[str] = []
    two(asked, "A", "A")[0].pre_commit(SEVEN, votes, dict.fromkeys(votes, ()), keep={SECOND: [committable(1)]})
    assert asked == ["first pre-commits and lists", "second pre-commits", "A is swept beside 3"]
    asked.clear()
    two(asked, "A", "B")[0].pre_commit(SEVEN, votes, dict.fromkeys(votes, ()), keep={SECOND: [committable(1)]})
    assert asked == [
        "first pre-commits and lists", "A is swept beside 1", "second pre-commits and lists", "B is swept beside 2",
    ]  # fmt: skip


def test_a_job_is_claimed_once_on_each_system() -> None:
    asked: list[str] = []
    together, first, _ = two(asked, "A", "A")
    first.claim = CLAIM
    assert list(together.read_claims()) == [CLAIM]
    together.take_claim(CLAIM, together.read_claims())
    assert asked == ["A is claimed in place of [7]"]
    asked.clear()
    apart, first, second = two(asked, "A", "B")
    first.claim, second.claim = replace(CLAIM, completed=CheckpointId(8)), CLAIM
    assert list(apart.read_claims()) == [first.claim, second.claim], "the driver ended between the two"
    apart.take_claim(CLAIM, apart.read_claims())
    assert asked == ["A is claimed in place of [8]", "B is claimed in place of [7]"]


class Scene:
    """A settler of two sinks."""

    def __init__(self, *systems: str, on_lost: OnLost = OnLost.REPLAY) -> None:
        self.asked: list[str] = []
        self.outputs, self.first, self.second = two(self.asked, *systems, on_lost=on_lost)
        self.failures: list[Exception] = []
        self.queue = Queue()
        same: Any = self
        self.settler = Settler(
            session=same,
            source=same,
            outputs=self.outputs,
            journal=Journal("orders"),
            on_settled=lambda *_: None,
            on_lost=lambda: self.asked.append("lost"),
            on_error=self.failures.append,
            runtime=self.queue,
        )
        self.settler.expect(SEVEN, {FIRST: (committable(0),), SECOND: (committable(0),)}, None)

    grant: Any = type("Grant", (), {"store_id": "store", "completed": None})
    job, generation, driver = JOB, Generation(2), "driver"

    def settle(
        self, _checkpoint: CheckpointId, name: ParticipantName, settlements: Sequence[Settlement], **_: Any
    ) -> Answer:
        self.asked.append(f"{name} reports {', '.join(one.outcome.value for one in settlements)}")
        self.reported()
        return Answer(verdict=Verdict.ACCEPTED if self.timely else Verdict.TOO_LATE)

    reported: Callable[[], None] = staticmethod(lambda: None)
    """Called before each answer to a report."""
    timely = True
    """Whether the coordinator takes reports: it does not once a later amendment is stored."""

    def complete(self, amendment: int = 0) -> list[str]:
        self.asked.clear()
        self.settler.complete(SEVEN, amendment)
        self.queue.work()
        return self.asked


def test_all_claims_come_before_the_first_commit_and_all_outcomes_are_reported() -> None:
    scene = Scene("A", "B")
    assert scene.complete() == [
        "A is claimed", "B is claimed", "first commits", "second commits",
        "first reports committed", "second reports committed",
        "first is settled with 1", "second is settled with 1",
    ]  # fmt: skip
    assert scene.settler.settled == SEVEN


def test_a_system_that_is_slow_to_commit_holds_back_no_other() -> None:
    asked: list[str] = []
    _, first, second = two(asked, "A", "B")
    committed, given = threading.Event(), [first, second]
    slow, quick = first.commit, second.commit

    def wait(*arguments: Any, **options: Any) -> Sequence[Settlement]:
        assert committed.wait(60), "the other one waits for this one"
        return slow(*arguments, **options)

    def commit(*arguments: Any, **options: Any) -> Sequence[Settlement]:
        done = quick(*arguments, **options)
        committed.set()
        return done

    with patch.object(first, "commit", wait), patch.object(second, "commit", commit):
        outputs = Outputs(JOB, [OpenOutput(sink=one, system=one) for one in cast(Any, given)])
        held = {FIRST: (committable(0),), SECOND: (committable(0),)}
        found = outputs.commit(lambda _: cast(Any, None), held, give_up=lambda: False, made={})
    assert [name for name, (one,) in found.items() if one.outcome is Outcome.COMMITTED] == [FIRST, SECOND]


def test_a_place_names_what_a_sink_writes_to_and_is_short() -> None:
    def written(*names: str) -> list[Resource]:
        return [Resource(kind="Kafka topic", cluster="c", name=name) for name in names]

    assert place_of(written("orders-us", "orders-eur")) == "Kafka topic orders-eur, orders-us"
    assert place_of(()) == ""
    many = place_of(written(*(f"orders-{number}" for number in range(100))))
    assert (len(many), many[-1]) == (200, "…")


def test_metrics_see_which_output_commits_and_how_long_each_step_took() -> None:
    shown: list[tuple[Any, ...]] = []
    asked: list[str] = []
    runtime, now = InOrder(), iter(range(100))

    def follow(event: str, facts: Mapping[str, Any]) -> None:
        shown.append((event, facts["output"], facts["step"], *([facts["seconds"]] if "seconds" in facts else [])))

    with patch.object(runtime, "monotonic", lambda: next(now)):
        outputs, first, _ = two(asked, "A", "B", runtime=runtime, journal=Journal("orders", follow))
        outputs.pre_commit(SEVEN, {FIRST: []}, {FIRST: ()}, keep={})
        assert shown == [("output begins", "first", "pre_commit"), ("output ends", "first", "pre_commit", 1)]
        shown.clear()
        held = {FIRST: (committable(0),), SECOND: (committable(0),)}
        with patch.object(first, "commit", side_effect=HaltedError("no")), pytest.raises(HaltedError):
            outputs.commit(lambda _: cast(Any, None), held, give_up=lambda: False, made={})
    assert sorted(shown) == [
        ("output begins", "first", "commit"),
        ("output begins", "second", "commit"),
        ("output ends", "second", "commit", 1),
    ], "the first one has not ended"


def test_those_that_belong_together_are_committed_by_one_call() -> None:
    scene = Scene("A", "B")
    scene.first.shared = scene.second.shared = "catalogue"
    assert scene.complete() == [
        "A is claimed", "B is claimed", "first and second commit together",
        "first reports committed", "second reports committed",
        "first is settled with 1", "second is settled with 1",
    ]  # fmt: skip
    scene = Scene("A", "B")
    scene.first.shared, scene.second.shared = "catalogue", "another one"
    assert scene.complete()[2:4] == ["first commits", "second commits"]


def test_an_error_of_one_system_is_raised_after_the_others_have_answered() -> None:
    asked: list[str] = []
    outputs, first, _ = two(asked, "A", "B")
    held = {FIRST: (committable(0),), SECOND: (committable(0),)}
    with patch.object(first, "commit", side_effect=HaltedError("no")), pytest.raises(HaltedError, match="no"):
        outputs.commit(lambda _: cast(Any, None), held, give_up=lambda: False, made={})
    assert asked == ["second commits"]


def test_one_sink_in_doubt_halts_the_job_and_the_other_is_settled_first() -> None:
    scene = Scene("A", "A")
    scene.first.outcome = Outcome.IN_DOUBT
    asked = scene.complete()
    assert asked[-2:] == ["second reports committed", "first reports in_doubt"]
    (failure,) = scene.failures
    assert isinstance(failure, HaltedError)
    assert "1 of its 1 transactions" in str(failure)
    assert "of first. seen" in str(failure)


def test_lost_slots_of_one_sink_are_replaced_for_it_alone() -> None:
    scene = Scene("A", "B")
    scene.second.outcome = Outcome.LOST
    assert scene.complete()[-1] == "lost"
    scene.settler.amend(SEVEN, SECOND, frozenset({0}), (committable(0, again=True),))
    assert scene.settler.unsettled() == {FIRST: (committable(0),), SECOND: (committable(0, again=True),)}
    scene.second.outcome = Outcome.COMMITTED
    asked = scene.complete(1)
    assert "second commits" in asked
    assert "first commits" not in asked, "it is proved"
    assert scene.settler.settled == SEVEN


def test_what_both_sinks_have_lost_is_replaced_one_after_the_other_and_asked_for_once() -> None:
    scene = Scene("A", "B")
    scene.first.outcome = scene.second.outcome = Outcome.LOST
    assert scene.complete()[-3:] == ["first reports lost", "second reports lost", "lost"]
    scene.settler.amend(SEVEN, FIRST, frozenset({0}), (committable(0, again=True),))
    scene.first.outcome = Outcome.COMMITTED
    asked = scene.complete(1)
    assert [one for one in asked if one.endswith("commits")] == ["first commits"], "the other is proved lost"
    assert "second reports lost" in asked, "the first report may have come too late"
    assert scene.settler.settled < SEVEN
    scene.settler.amend(SEVEN, SECOND, frozenset({0}), (committable(0, again=True),))
    scene.second.outcome = Outcome.COMMITTED
    asked = scene.complete(2)
    assert [one for one in asked if one.endswith("commits")] == ["second commits"]
    assert scene.settler.settled == SEVEN


def test_slots_that_were_lost_before_are_not_committed_while_another_sinks_are_written_again() -> None:
    """A person may have ruled that a slot in doubt is written again: its transaction may still be open."""
    scene = Scene("A", "B")
    lost = {FIRST: frozenset({0}), SECOND: frozenset({0})}
    scene.settler.expect(SEVEN, {FIRST: (committable(0),), SECOND: (committable(0), committable(1))}, None, lost=lost)
    scene.settler.amend(SEVEN, FIRST, frozenset({0}), (committable(0, again=True),))
    asked = scene.complete(1)
    assert "first reports committed" in asked
    assert "second reports committed" in asked, "its other slot"
    assert scene.settler.settled < SEVEN
    scene.settler.amend(SEVEN, SECOND, frozenset({0}), (committable(0, again=True),))
    asked = scene.complete(2)
    assert "first commits" not in asked
    assert "second reports committed, committed" in asked
    assert scene.settler.settled == SEVEN


def test_outcomes_that_another_sinks_amendment_makes_outdated_settle_nothing() -> None:
    scene = Scene("A", "B")

    def amend() -> None:
        scene.reported, scene.timely = lambda: None, False
        scene.settler.amend(SEVEN, SECOND, frozenset({0}), (committable(0, again=True),))

    scene.reported = amend
    scene.complete()
    assert scene.settler.settled < SEVEN
    scene.timely = True
    assert "second commits" in scene.complete(1)
    assert scene.settler.settled == SEVEN
    assert scene.failures == []
