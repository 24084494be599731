"""What each fact changes in a job, and that it changes nothing else: no other checkpoint, sink or slot."""

from dataclasses import replace
from typing import Any

import pytest

from onceward.protocol import facts
from onceward.protocol.durable import (
    AbortedCheckpoint,
    Durable,
    Loss,
    Resolution,
    RestoreOrder,
    UndecidedCheckpoint,
)
from onceward.protocol.evolve import MAX_HOLDERS, evolve
from onceward.protocol.requests import MAX_KEPT, Ending, Request, RequestState, Ruling
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.status import JobStatus, Transition
from onceward.protocol.values import (
    COORDINATOR,
    CheckpointId,
    CheckpointKind,
    Claim,
    Committable,
    CompletedCheckpoint,
    Generation,
    JobName,
    Outcome,
    Participant,
    ParticipantName,
    RequestId,
    Role,
    Settlement,
    Snapshot,
)
from tests.support.documents import committable, document

SOURCE, SINK, OTHER = (ParticipantName(name) for name in ("source", "sink", "other"))
MEMBERS = tuple(
    Participant(name=name, role=role, kind="test")
    for name, role in ((SOURCE, Role.SOURCE), (SINK, Role.SINK), (OTHER, Role.SINK))
)
FORMER = (Participant(name=ParticipantName("former"), role=Role.SINK, kind="test"),)
LOST, DOUBT, COMMITTED = Outcome.LOST, Outcome.IN_DOUBT, Outcome.COMMITTED
NINE, TEN = CheckpointId(9), CheckpointId(10)
CLAIM = Claim(store_id="store-b", generation=Generation(3), completed=TEN)
NEWER = replace(CLAIM, completed=CheckpointId(11))


def committables(*slots: int, by: str = "") -> tuple[Committable, ...]:
    return tuple(committable(slot, by=by) for slot in slots)


def settlements(**outcomes: Outcome) -> tuple[Settlement, ...]:
    return tuple(Settlement(slot=int(slot[1:]), outcome=one, evidence="seen") for slot, one in outcomes.items())


COMPLETED = CompletedCheckpoint(
    id=NINE,
    base=CheckpointId(8),
    generation=Generation(3),
    snapshots={
        SOURCE: Snapshot(positions=document(at="there")),
        SINK: Snapshot(committables=committables(0, 1, 2), records=3),
        OTHER: Snapshot(committables=committables(0, 1, 2), records=4),
    },
    kind=CheckpointKind.SAVEPOINT,
    amendment=1,
)
ASKED = tuple(
    Request(id=RequestId(f"r{number}"), kind=CheckpointKind.CHECKPOINT, state=state, checkpoint=CheckpointId(number))
    for number, state in enumerate((RequestState.COMPLETED, RequestState.QUEUED), 1)
)
FULL = Durable(
    job=JobName("orders"),
    store_id="store-a",
    status=JobStatus.HALTED,
    status_detail="why",
    generation=Generation(3),
    driver="d3",
    holders={Generation(3): "d3"},
    participants=MEMBERS,
    gone=FORMER,
    settings=CheckpointSettings(interval="7s"),
    last_id=TEN,
    completed=COMPLETED,
    finished=CheckpointId(4),
    pending=UndecidedCheckpoint(id=TEN, base=NINE, kind=CheckpointKind.SAVEPOINT, request=RequestId("r2")),
    aborted=AbortedCheckpoint(
        id=CheckpointId(7), generation=Generation(2), reason=facts.AbortReason.EXPIRED, detail="late"
    ),
    failures=2,
    former_failures=3,
    failure="it broke",
    ending=Ending.STOP,
    requests=ASKED,
    replaying={SINK: frozenset({0, 1}), OTHER: frozenset({1})},
    lost=True,
    takeover=Generation(3),
    adoption=CLAIM,
    restore=RestoreOrder(source=COMPLETED, reason="Ada wants it"),
    outcomes={SINK: {0: LOST, 1: DOUBT, 2: COMMITTED}, OTHER: {0: LOST, 1: DOUBT}},
    resolution=Resolution(checkpoint=NINE, participant=OTHER, slots=frozenset({2}), ruling=Ruling.GIVEN_UP),
    losses=(
        Loss(checkpoint=CheckpointId(5), participant=SINK, slots=frozenset({1, 2})),
        Loss(checkpoint=NINE, participant=SINK, slots=frozenset({2})),
    ),
)
GRANTED = facts.GenerationGranted(
    generation=Generation(4), driver="d4", participants=MEMBERS[:2], settings=CheckpointSettings(), first_id=TEN
)
NO_FAILURES = {"failures": 0, "former_failures": 0, "failure": ""}
NEW = {SOURCE: Snapshot(positions=document(at="here"))}


def with_slots(name: ParticipantName, *slots: Committable, amendment: int = 1) -> CompletedCheckpoint:
    snapshots = {**COMPLETED.snapshots, name: replace(COMPLETED.snapshots[name], committables=slots)}
    return replace(COMPLETED, snapshots=snapshots, amendment=amendment)


def resolved(*slots: int, settled: tuple[int, ...]) -> facts.SlotsResolved:
    return facts.SlotsResolved(
        checkpoint=NINE,
        participant=SINK,
        slots=frozenset(slots),
        ruling=Ruling.COMMITTED,
        settled=frozenset(settled),
        reason="I know",
        evidence=(),
        forced=False,
    )


CHANGES: list[tuple[facts.Fact, dict[str, Any]]] = [
    (
        GRANTED,
        {
            "generation": 4,
            "driver": "d4",
            "holders": {3: "d3", 4: "d4"},
            "participants": MEMBERS[:2],
            "gone": (*FORMER, *MEMBERS[2:]),
            "settings": CheckpointSettings(),
            "failures": 0,
            "outcomes": {},
            "takeover": 0,
            "adoption": None,
        },
    ),
    (
        replace(GRANTED, driver=COORDINATOR, holder="c4", participants=MEMBERS, settings=FULL.settings),
        {"generation": 4, "driver": COORDINATOR, "holders": {3: "d3", 4: "c4"}, "failures": 0, "takeover": 0},
    ),
    (facts.TakeoverPermitted(generation=Generation(4), reason="so"), {"takeover": 4}),
    (facts.AdoptionPermitted(claim=NEWER, reason="so"), {"adoption": NEWER}),
    (
        facts.StatusChanged(transition=Transition.FINISHED, status=JobStatus.FINISHED, detail=""),
        {"status": JobStatus.FINISHED, "status_detail": "", "ending": None, "finished": NINE, **NO_FAILURES},
    ),
    (
        facts.StatusChanged(transition=Transition.CANCELLED, status=JobStatus.CANCELLED, detail="so"),
        {"status": JobStatus.CANCELLED, "status_detail": "so", "ending": None, **NO_FAILURES},
    ),
    (
        facts.CheckpointTriggered(
            checkpoint=CheckpointId(11),
            base=NINE,
            generation=Generation(3),
            kind=CheckpointKind.CHECKPOINT,
            request=RequestId("r2"),
            waited_s=0.0,
        ),
        {
            "last_id": 11,
            "adoption": None,
            "pending": UndecidedCheckpoint(id=CheckpointId(11), base=NINE, request=RequestId("r2")),
            "requests": (ASKED[0], replace(ASKED[1], state=RequestState.RUNNING, checkpoint=CheckpointId(11))),
        },
    ),
    (
        facts.CheckpointCompleted(checkpoint=TEN, snapshots=NEW, settled=True, ran_s=0.0, decided_s=0.0),
        {
            "pending": None,
            **NO_FAILURES,
            "completed": CompletedCheckpoint(
                id=TEN,
                base=NINE,
                generation=Generation(3),
                snapshots=NEW,
                settled=True,
                kind=CheckpointKind.SAVEPOINT,
            ),
        },
    ),
    (
        facts.GenerationEnded(generation=Generation(3), detail="it broke again", failed=True),
        {"driver": None, "failures": 0, "former_failures": 5, "failure": "it broke again"},
    ),
    (
        facts.GenerationEnded(generation=Generation(3), detail="it left"),
        {"driver": None, "failures": 0, "former_failures": 5},
    ),
    (
        facts.CheckpointSettled(checkpoint=NINE, took_s=0.0),
        {"completed": replace(COMPLETED, settled=True), "outcomes": {}},
    ),
    (
        facts.LossRecorded(checkpoint=NINE, participant=SINK, settlements=settlements(_2=LOST)),
        {"replaying": {SINK: frozenset({0, 1, 2}), OTHER: frozenset({1})}},
    ),
    (
        facts.LossSkipped(
            checkpoint=NINE, participant=SINK, settlements=settlements(_0=LOST), committables=(), reason="so"
        ),
        {
            "completed": with_slots(SINK, *committables(1, 2)),
            "replaying": {SINK: frozenset({1}), OTHER: frozenset({1})},
            "outcomes": {SINK: {1: DOUBT, 2: COMMITTED}, OTHER: {0: LOST, 1: DOUBT}},
            "losses": (FULL.losses[0], Loss(checkpoint=NINE, participant=SINK, slots=frozenset({0, 2}))),
        },
    ),
    (
        facts.LossSkipped(
            checkpoint=NINE, participant=OTHER, settlements=settlements(_0=LOST, _1=DOUBT), committables=(), reason="so"
        ),
        {
            "completed": with_slots(OTHER, *committables(2)),
            "replaying": {SINK: frozenset({0, 1})},
            "outcomes": {SINK: FULL.outcomes[SINK]},
            "losses": (*FULL.losses, Loss(checkpoint=NINE, participant=OTHER, slots=frozenset({0, 1}))),
        },
    ),
    (
        facts.LossAcknowledged(checkpoint=CheckpointId(5), participant=SINK, slots=frozenset({1}), reason="so"),
        {"losses": (replace(FULL.losses[0], slots=frozenset({2})), FULL.losses[1])},
    ),
    (
        facts.OutputClosed(participant=ParticipantName("former"), reason="so"),
        {"gone": ()},
    ),
    (
        facts.LossAcknowledged(checkpoint=NINE, participant=SINK, slots=frozenset({2}), reason="so"),
        {"losses": FULL.losses[:1]},
    ),
    (
        facts.CheckpointAmended(
            checkpoint=NINE,
            participant=SINK,
            amendment=2,
            slots=frozenset({0}),
            committables=committables(0, by="again "),
        ),
        {
            "completed": with_slots(SINK, *committables(0, by="again "), *committables(1, 2), amendment=2),
            "replaying": {SINK: frozenset({1}), OTHER: frozenset({1})},
        },
    ),
    (
        facts.CheckpointAmended(
            checkpoint=NINE, participant=SINK, amendment=2, slots=frozenset({0, 1}), committables=()
        ),
        {"completed": with_slots(SINK, *committables(2), amendment=2), "replaying": {OTHER: frozenset({1})}},
    ),
    # A proved loss stays lost; a slot in doubt takes the outcome that was found.
    (
        facts.JobHalted(
            checkpoint=NINE, participant=SINK, settlements=settlements(_0=DOUBT, _1=COMMITTED), reason="why"
        ),
        {"outcomes": {SINK: {0: LOST, 1: COMMITTED, 2: COMMITTED}, OTHER: FULL.outcomes[OTHER]}},
    ),
    (
        facts.JobHalted(checkpoint=NINE, participant=OTHER, settlements=(), reason="why"),
        {"outcomes": {SINK: FULL.outcomes[SINK], OTHER: {0: LOST, 1: LOST}}},
    ),
    (
        resolved(0, settled=(0,)),
        {
            "completed": with_slots(SINK, *committables(1, 2)),
            "outcomes": {SINK: {1: DOUBT, 2: COMMITTED}, OTHER: FULL.outcomes[OTHER]},
            "replaying": {SINK: frozenset({1}), OTHER: frozenset({1})},
            "resolution": Resolution(checkpoint=NINE, participant=SINK, slots=frozenset({0}), ruling=Ruling.COMMITTED),
        },
    ),
    (
        resolved(0, 1, settled=(0, 1, 2)),
        {
            "completed": with_slots(SINK),
            "outcomes": {OTHER: FULL.outcomes[OTHER]},
            "replaying": {OTHER: frozenset({1})},
            "resolution": Resolution(
                checkpoint=NINE, participant=SINK, slots=frozenset({0, 1}), ruling=Ruling.COMMITTED
            ),
        },
    ),
    (
        facts.CheckpointRestored(
            checkpoint=CheckpointId(11),
            source=CheckpointId(6),
            former=NINE,
            generation=Generation(4),
            snapshots=NEW,
            reason="so",
        ),
        {
            "last_id": 11,
            "completed": CompletedCheckpoint(
                id=CheckpointId(11),
                base=CheckpointId(6),
                generation=Generation(4),
                snapshots=NEW,
                settled=True,
                kind=CheckpointKind.RESTORE,
            ),
            "restore": None,
            "replaying": {},
            "lost": False,
            "outcomes": {},
        },
    ),
    (
        facts.InputSkipped(
            checkpoint=CheckpointId(11),
            base=NINE,
            generation=Generation(3),
            participant=SOURCE,
            snapshots=NEW,
            skipped="some",
            reason="so",
        ),
        {
            "last_id": 11,
            "completed": CompletedCheckpoint(
                id=CheckpointId(11),
                base=NINE,
                generation=Generation(3),
                snapshots=NEW,
                settled=True,
                kind=CheckpointKind.SKIP,
            ),
        },
    ),
    (facts.SavepointReleased(checkpoint=NINE), {"completed": replace(COMPLETED, kind=CheckpointKind.CHECKPOINT)}),
    (facts.SavepointReleased(checkpoint=CheckpointId(6)), {}),
]


@pytest.mark.parametrize(("fact", "changes"), CHANGES, ids=lambda value: type(value).__name__)
def test_a_fact_changes_what_it_says_and_nothing_else(fact: facts.Fact, changes: dict[str, Any]) -> None:
    assert evolve(FULL, fact) == replace(FULL, **changes)


def test_a_restore_makes_a_job_readable_and_a_run_that_had_finished_stays_finished_when_input_is_skipped() -> None:
    restored = next(fact for fact, _ in CHANGES if isinstance(fact, facts.CheckpointRestored))
    assert evolve(replace(FULL, completed=None, unreadable="damaged"), restored).unreadable == ""
    skipped = next(fact for fact, _ in CHANGES if isinstance(fact, facts.InputSkipped))
    assert evolve(replace(FULL, finished=NINE), skipped).finished == 11


def test_a_driver_that_adopts_a_claim_keeps_the_permission_until_it_has_replaced_the_claim() -> None:
    assert evolve(FULL, replace(GRANTED, adopted=CLAIM)).adoption == CLAIM


def test_the_last_slot_that_is_decided_about_makes_the_job_free() -> None:
    alone = replace(FULL, outcomes={SINK: {0: LOST, 1: DOUBT}})
    assert not evolve(alone, resolved(0, 1, settled=(0, 1))).lost
    assert evolve(alone, resolved(1, settled=(1,))).lost


def test_a_job_halts_without_outcomes_where_nothing_is_known_of_its_slots() -> None:
    bare = replace(FULL, replaying={}, outcomes={}, lost=False)
    halted = facts.JobHalted(checkpoint=NINE, participant=SINK, settlements=(), reason="why")
    assert evolve(bare, halted) == bare
    assert evolve(bare, replace(halted, settlements=settlements(_1=LOST))).lost
    assert not evolve(bare, replace(halted, settlements=settlements(_1=DOUBT))).lost


def test_of_a_forgotten_job_its_name_its_ids_and_who_took_part_stay() -> None:
    assert evolve(FULL, facts.JobForgotten(reason="so")) == Durable(
        job=FULL.job,
        store_id=FULL.store_id,
        status=FULL.status,
        generation=FULL.generation,
        participants=FULL.participants,
        gone=FULL.gone,
        last_id=FULL.last_id,
    )


def test_a_new_job_under_the_name_of_a_forgotten_one_has_no_outputs_that_are_gone() -> None:
    forgotten = replace(evolve(FULL, facts.JobForgotten(reason="so")), status=JobStatus.FORGOTTEN)
    assert evolve(forgotten, GRANTED).gone == ()


def test_of_requests_only_ended_ones_are_dropped_and_the_oldest_first() -> None:
    def request(number: int, state: RequestState) -> Request:
        return Request(id=RequestId(f"r{number}"), kind=CheckpointKind.CHECKPOINT, state=state)

    ended = [request(number, RequestState.FAILED) for number in range(40)]
    waiting = request(99, RequestState.QUEUED)
    durable = replace(FULL, requests=(waiting,))
    for one in ended:
        durable = evolve(durable, facts.RequestQueued(request=one))
    assert durable.requests == (waiting, *ended[-MAX_KEPT + 1 :])
    few = replace(FULL, requests=tuple(ended[: MAX_KEPT - 1]))
    assert evolve(few, facts.RequestQueued(request=waiting)).requests == (*few.requests, waiting)


def test_the_holders_of_the_newest_generations_are_remembered() -> None:
    durable = replace(FULL, holders={})
    for number in range(1, MAX_HOLDERS + 3):
        durable = evolve(durable, replace(GRANTED, generation=Generation(number), driver=f"d{number}"))
    assert list(durable.holders) == list(range(3, MAX_HOLDERS + 3))
