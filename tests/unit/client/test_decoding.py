"""Requests decode completely into the events that they mean; invalid ones are refused with the name of the field."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from google.protobuf.message import Message

from onceward.protocol import events
from onceward.protocol.committing import Age
from onceward.protocol.requests import Ruling
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import (
    MAX_ID,
    CheckpointId,
    CheckpointKind,
    Claim,
    Committable,
    Document,
    Generation,
    OnLost,
    Outcome,
    Participant,
    ParticipantName,
    RequestId,
    Role,
    Settlement,
    Snapshot,
)
from onceward.wire import requests, values
from onceward.wire.documents import document_to_wire
from onceward.wire.limits import (
    MAX_BACK_WITHIN_S,
    MAX_LABEL,
    MAX_LISTED,
    MAX_PARTICIPANTS,
    MAX_TEXT,
    MAX_VERSION,
)
from onceward.wire.malformed import MalformedError, as_job, as_reason
from onceward.wire.secret import fingerprint
from onceward.wire.v1 import operators_pb2 as people
from onceward.wire.v1 import participants_pb2 as pb
from onceward.wire.values import (
    committable_to_wire,
    settings_to_wire,
    snapshot_from_wire,
    snapshot_to_wire,
)

NOW = 12.5
SINK = ParticipantName("sink")
GENERATION = Generation(3)
CHECKPOINT = CheckpointId(7)
DOCUMENT = Document(kind="test", version=2, body={"is": "it"})
SNAPSHOT = Snapshot(positions=DOCUMENT, records=4, bytes=5, unchanged=True, state=DOCUMENT, next_at_once=True)
COMMITTABLE = Committable(slot=2, document=DOCUMENT)
SETTLEMENT = Settlement(slot=2, outcome=Outcome.LOST, evidence="an epoch too old")
CLAIM = Claim(store_id="s", generation=Generation(2), completed=CheckpointId(6), holder="d0", amendment=1)
OLDER = Claim(store_id="s", generation=Generation(1), completed=CheckpointId(5))
SETTINGS = CheckpointSettings(interval="3s", timeout="7min", lease="13s", orphan_grace="17s")
MEMBERS = (
    Participant(name=ParticipantName("source"), role=Role.SOURCE, kind="here", on_lost=OnLost.HALT),
    Participant(name=SINK, role=Role.SINK, kind="there", on_lost=OnLost.REPLAY),
)

DRIVER = fingerprint("d1")
"""What the core gets of the secret."""

Decode = Callable[[Any, float], object]
REQUESTS: dict[Decode, tuple[Message, object]] = {
    requests.open_job: (
        pb.OpenJobRequest(
            driver="d1",
            participants=map(values.PARTICIPANT.to_wire, MEMBERS),
            settings=settings_to_wire(SETTINGS),
            claim=values.CLAIM.to_wire(CLAIM),
            more_claims=[values.CLAIM.to_wire(OLDER)],
            instead_of=2,
        ),
        events.OpenJob(
            now=NOW,
            driver=DRIVER,
            participants=MEMBERS,
            settings=SETTINGS,
            claim=CLAIM,
            more_claims=(OLDER,),
            instead_of=Generation(2),
        ),
    ),
    requests.watch: (
        pb.WatchRequest(generation=3, driver="d1"),
        events.Watch(now=NOW, generation=GENERATION, driver=DRIVER),
    ),
    requests.renew: (
        pb.RenewRequest(generation=3, aborted=7, driver="d1"),
        events.Renew(now=NOW, generation=GENERATION, aborted=CHECKPOINT, driver=DRIVER),
    ),
    requests.acknowledge: (
        pb.AcknowledgeRequest(
            generation=3,
            checkpoint=7,
            base=6,
            acknowledgements=[
                pb.Acknowledgement(participant="sink", snapshot=snapshot_to_wire(SNAPSHOT)),
                pb.Acknowledgement(participant="source", snapshot=snapshot_to_wire(Snapshot())),
            ],
            good_for_us=1_500_000,
            driver="d1",
        ),
        [
            events.Acknowledge(
                now=NOW,
                generation=GENERATION,
                checkpoint=CHECKPOINT,
                participant=ParticipantName(name),
                base=CheckpointId(6),
                snapshot=snapshot,
                good_for_s=1.5,
                driver=DRIVER,
            )
            for name, snapshot in (("sink", SNAPSHOT), ("source", Snapshot()))
        ],
    ),
    requests.decline: (
        pb.DeclineRequest(generation=3, checkpoint=7, participant="sink", reason="no", driver="d1"),
        events.Decline(
            now=NOW, generation=GENERATION, checkpoint=CHECKPOINT, participant=SINK, reason="no", driver=DRIVER
        ),
    ),
    requests.settle: (
        pb.SettleRequest(
            generation=3,
            checkpoint=7,
            participant="sink",
            settlements=[values.SETTLEMENT.to_wire(SETTLEMENT)],
            amendment=1,
            driver="d1",
        ),
        events.Settle(
            now=NOW,
            generation=GENERATION,
            checkpoint=CHECKPOINT,
            participant=SINK,
            settlements=(SETTLEMENT,),
            amendment=1,
            driver=DRIVER,
        ),
    ),
    requests.amend: (
        pb.AmendRequest(
            generation=3,
            checkpoint=7,
            participant="sink",
            amendment=1,
            slots=[2, 4],
            committables=[committable_to_wire(COMMITTABLE)],
            driver="d1",
        ),
        events.Amend(
            now=NOW,
            generation=GENERATION,
            checkpoint=CHECKPOINT,
            participant=SINK,
            amendment=1,
            slots=frozenset({2, 4}),
            committables=(COMMITTABLE,),
            driver=DRIVER,
        ),
    ),
    requests.close_job: (
        pb.CloseJobRequest(
            generation=3,
            reason=pb.CLOSE_REASON_HALTED,
            detail="why",
            back_within_us=2_500_000,
            driver="d1",
            completed=CHECKPOINT,
        ),
        events.CloseJob(
            now=NOW,
            generation=GENERATION,
            reason=events.CloseReason.HALTED,
            detail="why",
            back_within_s=2.5,
            completed=CHECKPOINT,
            driver=DRIVER,
        ),
    ),
    requests.request_checkpoint: (
        people.TriggerCheckpointRequest(request="r", kind=pb.CHECKPOINT_KIND_SAVEPOINT, name="before", stop=True),
        events.RequestCheckpoint(
            now=NOW, request=RequestId("r"), kind=CheckpointKind.SAVEPOINT, name="before", stop=True
        ),
    ),
    requests.stop_job: (people.StopJobRequest(), events.StopJob(now=NOW)),
    requests.cancel_job: (people.CancelJobRequest(), events.CancelJob(now=NOW)),
    requests.permit_takeover: (
        people.PermitTakeoverRequest(generation=3, reason="it hangs"),
        events.PermitTakeover(now=NOW, generation=GENERATION, reason="it hangs"),
    ),
    requests.permit_adoption: (
        people.PermitAdoptionRequest(claim=values.CLAIM.to_wire(CLAIM), reason="it is gone"),
        events.PermitAdoption(now=NOW, claim=CLAIM, reason="it is gone"),
    ),
    requests.delete_savepoint: (
        people.DeleteSavepointRequest(checkpoint=7),
        events.ReleaseSavepoint(now=NOW, checkpoint=CHECKPOINT),
    ),
    requests.resolve_slots: (
        people.ResolveSlotsRequest(
            checkpoint=7,
            participant="sink",
            slots=[2],
            ruling=people.RULING_GIVEN_UP,
            reason="I saw it",
            evidence=[values.SETTLEMENT.to_wire(SETTLEMENT)],
            forced=True,
        ),
        events.Resolve(
            now=NOW,
            checkpoint=CHECKPOINT,
            participant=SINK,
            slots=frozenset({2}),
            ruling=Ruling.GIVEN_UP,
            reason="I saw it",
            evidence=(SETTLEMENT,),
            forced=True,
        ),
    ),
    requests.acknowledge_loss: (
        people.AcknowledgeLossRequest(checkpoint=7, participant="sink", slots=[2], reason="I know"),
        events.AcknowledgeLoss(now=NOW, checkpoint=CHECKPOINT, participant=SINK, slots=frozenset({2}), reason="I know"),
    ),
    requests.close_output: (
        people.CloseOutputRequest(participant="sink", reason="it moved"),
        events.CloseOutput(now=NOW, participant=SINK, reason="it moved"),
    ),
    requests.forget_job: (people.ForgetJobRequest(reason="it is over"), events.ForgetJob(now=NOW, reason="it is over")),
}


def changed(message: Message, **fields: Any) -> Message:
    """Return a copy with other fields; None removes a field."""
    copy = type(message)()
    copy.CopyFrom(message)
    for name, value in fields.items():
        copy.ClearField(name)
        if value is not None:
            copy.MergeFrom(type(message)(**{name: value}))
    return copy


@pytest.mark.parametrize("decode", REQUESTS, ids=[type(message).__name__ for message, _ in REQUESTS.values()])
def test_a_request_is_the_event_that_it_means(decode: Decode) -> None:
    message, event = REQUESTS[decode]
    assert decode(type(message).FromString(message.SerializeToString()), NOW) == event


NUMBERS = {
    "generation": 1,
    "checkpoint": 1,
    "instead_of": 0,
    "aborted": 0,
    "base": 0,
    "amendment": 0,
    "good_for_us": 0,
    "back_within_us": 0,
}
"""The least valid value of each."""
WRONG: list[tuple[Decode, dict[str, Any], str]] = [
    *(
        (
            decode,
            {name: number},
            f"{name}: {number} is not within {least} and {MAX_ID}",
        )
        for decode, (message, _) in REQUESTS.items()
        for name, least in NUMBERS.items()
        if name in message.DESCRIPTOR.fields_by_name
        for number in (least - 1, MAX_ID + 1)
    ),
    *(
        (decode, {"participant": "no name!"}, "participant: ")
        for decode, (message, _) in REQUESTS.items()
        if "participant" in message.DESCRIPTOR.fields_by_name
    ),
    (requests.open_job, {"participants": [values.PARTICIPANT.to_wire(MEMBERS[0])]}, "participants: 1, must be 2 to"),
    (
        requests.open_job,
        {"participants": [values.PARTICIPANT.to_wire(MEMBERS[0])] * (MAX_PARTICIPANTS + 1)},
        f"participants: {MAX_PARTICIPANTS + 1}, must be 2 to {MAX_PARTICIPANTS}",
    ),
    (requests.open_job, {"settings": None}, "settings: missing"),
    (requests.open_job, {"settings": pb.CheckpointSettings(lease_us=-1)}, "settings: "),
    (requests.open_job, {"driver": ""}, "driver: must be 1 to"),
    (requests.open_job, {"driver": "d 1"}, "driver: must be 1 to"),
    (requests.open_job, {"claim": pb.Claim(generation=1)}, "store_id: must be 1 to"),
    (requests.open_job, {"claim": pb.Claim(store_id="s")}, "generation: 0 is not within 1"),
    (requests.open_job, {"claim": pb.Claim(store_id="s", generation=1, completed=-1)}, "completed: -1 is not within 0"),
    (requests.open_job, {"claim": pb.Claim(store_id="s", generation=1, holder="a b")}, "holder: must be 1 to"),
    (requests.acknowledge, {"acknowledgements": None}, "acknowledgements: 0, must be 1 to"),
    (
        requests.acknowledge,
        {"acknowledgements": [pb.Acknowledgement(participant="sink", snapshot=pb.Snapshot())] * (MAX_PARTICIPANTS + 1)},
        f"acknowledgements: {MAX_PARTICIPANTS + 1}, must be 1 to {MAX_PARTICIPANTS}",
    ),
    (requests.acknowledge, {"acknowledgements": [pb.Acknowledgement(participant="sink")]}, "snapshot: missing"),
    (requests.decline, {"reason": "x" * (MAX_TEXT + 1)}, f"reason: {MAX_TEXT + 1} characters, at most {MAX_TEXT}"),
    (requests.close_job, {"detail": "x" * (MAX_TEXT + 1)}, f"detail: {MAX_TEXT + 1} characters"),
    (requests.close_job, {"reason": None}, "CloseReason: is not specified"),
    (requests.close_job, {"reason": 99}, "CloseReason: has the unknown number 99"),
    (
        requests.close_job,
        {"back_within_us": int(MAX_BACK_WITHIN_S * 1e6) + 1},
        f"is more than {MAX_BACK_WITHIN_S} s",
    ),
    (requests.settle, {"settlements": [pb.Settlement(outcome=pb.OUTCOME_LOST, slot=-1)]}, "slot: -1 is not within 0"),
    (requests.settle, {"settlements": [pb.Settlement(slot=1)]}, "Outcome: is not specified"),
    (
        requests.settle,
        {"settlements": [pb.Settlement(outcome=pb.OUTCOME_LOST, evidence="x" * (MAX_TEXT + 1))]},
        f"evidence: {MAX_TEXT + 1} characters",
    ),
    (requests.amend, {"slots": None}, "slots: name at least one, and each once"),
    (requests.amend, {"slots": [1, 1]}, "slots: name at least one, and each once"),
    (requests.amend, {"slots": [-1]}, "slots: -1 is not within 0"),
    (requests.amend, {"committables": [pb.Committable(slot=1)]}, "committable: has no document"),
    (
        requests.amend,
        {"committables": [pb.Committable(slot=-1, document=document_to_wire(DOCUMENT))]},
        "slot: -1 is not within 0",
    ),
    (requests.request_checkpoint, {"name": "x" * (MAX_LABEL + 1)}, f"name: must be at most {MAX_LABEL} printable"),
    (requests.request_checkpoint, {"name": "a\x1b"}, f"name: must be at most {MAX_LABEL} printable"),
    (requests.request_checkpoint, {"request": ""}, "request: must be 1 to"),
    (requests.resolve_slots, {"reason": " "}, "reason: give your name and why"),
    (requests.resolve_slots, {"reason": "x" * (MAX_TEXT + 1)}, "reason: "),
    (requests.acknowledge_loss, {"reason": ""}, "reason: give your name and why"),
    (requests.close_output, {"reason": ""}, "reason: give your name and why"),
    (requests.close_output, {"participant": ""}, "participant: "),
    (requests.forget_job, {"reason": ""}, "reason: give your name and why"),
    (requests.permit_takeover, {"reason": ""}, "reason: give your name and why"),
    (requests.permit_adoption, {"reason": ""}, "reason: give your name and why"),
    (requests.permit_adoption, {"claim": None}, "claim: missing"),
    (requests.permit_adoption, {"claim": pb.Claim(store_id="s")}, "generation: 0 is not within 1"),
]


@pytest.mark.parametrize(
    ("decode", "fields", "words"),
    WRONG,
    ids=[
        f"{type(REQUESTS[decode][0]).__name__}-{'-'.join(fields)}-{number}"
        for number, (decode, fields, _) in enumerate(WRONG)
    ],
)
def test_a_request_that_means_nothing_is_refused_with_the_name_of_its_field(
    decode: Decode, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(MalformedError) as caught:
        decode(changed(REQUESTS[decode][0], **fields), NOW)
    assert words in str(caught.value)


def test_optional_fields_may_be_omitted() -> None:
    opening = changed(REQUESTS[requests.open_job][0], claim=None, instead_of=None)
    assert isinstance(event := requests.open_job(opening, NOW), events.OpenJob)  # type: ignore[arg-type]
    assert (event.claim, event.instead_of) == (None, 0)
    first = changed(REQUESTS[requests.acknowledge][0], good_for_us=None, base=None)
    assert [(one.good_for_s, one.base) for one in requests.acknowledge(first, NOW)] == [(None, 0)] * 2  # type: ignore[arg-type]
    loss = changed(REQUESTS[requests.acknowledge_loss][0], slots=None)
    assert requests.acknowledge_loss(loss, NOW).slots == frozenset()  # type: ignore[arg-type]
    unheld = changed(REQUESTS[requests.open_job][0], claim=pb.Claim(store_id="s", generation=1))
    assert requests.open_job(unheld, NOW).claim == Claim(  # type: ignore[arg-type]
        store_id="s", generation=Generation(1), completed=CheckpointId(0)
    )


def test_the_largest_values_are_taken() -> None:
    most = changed(REQUESTS[requests.close_job][0], back_within_us=int(MAX_BACK_WITHIN_S * 1e6), detail="x" * MAX_TEXT)
    assert requests.close_job(most, NOW).back_within_s == MAX_BACK_WITHIN_S  # type: ignore[arg-type]
    many = changed(
        REQUESTS[requests.open_job][0], participants=[values.PARTICIPANT.to_wire(MEMBERS[0])] * MAX_PARTICIPANTS
    )
    assert len(requests.open_job(many, NOW).participants) == MAX_PARTICIPANTS  # type: ignore[arg-type]
    named = changed(REQUESTS[requests.request_checkpoint][0], name="x" * MAX_LABEL)
    assert requests.request_checkpoint(named, NOW).name == "x" * MAX_LABEL  # type: ignore[arg-type]
    assert requests.watch(pb.WatchRequest(generation=MAX_ID, driver="d1"), NOW).generation == MAX_ID
    assert [requests.limit(number) for number in (0, 1, MAX_LISTED)] == [20, 1, MAX_LISTED]
    for number in (-1, MAX_LISTED + 1):
        with pytest.raises(MalformedError, match=f"limit: {number} is not within 1 and {MAX_LISTED}"):
            requests.limit(number)


def test_committables_without_their_shared_part_are_refused() -> None:
    message = snapshot_to_wire(
        Snapshot(committables=tuple(Committable(slot=slot, document=DOCUMENT) for slot in range(3)))
    )
    assert message.shared_body
    message.shared_body = '{"is": "another", "more": 1}'
    message.committables[0].document.body = '{"is": "its own"}'
    with pytest.raises(MalformedError, match="shared_body: "):
        snapshot_from_wire(message)


@pytest.mark.parametrize(("version", "fine"), [(0, False), (1, True), (MAX_VERSION, True), (-1, False)])
def test_versions_of_documents_begin_at_1(version: int, fine: bool) -> None:
    message = pb.Snapshot(positions=pb.Document(kind="test", version=version, body="{}"))
    if fine:
        assert snapshot_from_wire(message).positions == Document(kind="test", version=version, body={})
    else:
        with pytest.raises(MalformedError, match=f"version: {version} of a test document; versions begin at 1"):
            snapshot_from_wire(message)


@pytest.mark.parametrize("name", ["", "a b", "x" * 1000])
def test_a_name_that_is_none_is_refused_shortly(name: str) -> None:
    with pytest.raises(MalformedError, match=r"^job: ") as caught:
        as_job(name)
    assert len(str(caught.value)) < 320
    wrong = changed(
        REQUESTS[requests.open_job][0], participants=[pb.Participant(name="a", role=pb.ROLE_SINK, kind=name)] * 2
    )
    with pytest.raises(MalformedError, match=r"^kind: "):
        requests.open_job(wrong, NOW)  # type: ignore[arg-type]


def test_texts_are_taken_up_to_their_length_and_sent_cut() -> None:
    assert as_reason("x" * MAX_TEXT) == "x" * MAX_TEXT
    long = Settlement(slot=1, outcome=Outcome.LOST, evidence="x" * MAX_TEXT + "y")
    assert values.SETTLEMENT.to_wire(long).evidence == "x" * MAX_TEXT
    age = values.AGE.to_wire(
        Age(transaction="t" * MAX_TEXT + "u", open_for=timedelta(milliseconds=3), timeout=timedelta(2))
    )
    assert age == pb.TransactionAge(transaction="t" * MAX_TEXT, open_for_us=3000, timeout_us=2 * 86_400_000_000)
