"""What goes over the wire comes out unchanged, and enumerations are closed on both sides."""

import contextlib
import math
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.protocol import answers
from onceward.protocol.encoded import body_to_text
from onceward.protocol.facts import AbortReason
from onceward.protocol.phases import Phase, Phases
from onceward.protocol.read_progress import PartitionLag, ReadProgress
from onceward.protocol.requests import Request, RequestState
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import (
    CheckpointId,
    CheckpointKind,
    Claim,
    Committable,
    CompletedCheckpoint,
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
from onceward.wire.answers import ANSWER, GRANT, answer_from_wire, instruction_from_wire, instruction_to_wire
from onceward.wire.channel import KeepAlive
from onceward.wire.documents import body_from_text
from onceward.wire.enums import ClosedEnum
from onceward.wire.limits import MAX_DEPTH, MAX_SHOWN_PARTITIONS, MAX_TEXT, MAX_TOKEN
from onceward.wire.malformed import MalformedError, as_job, as_kind, as_participant, as_token
from onceward.wire.v1 import operators_pb2, participants_pb2
from onceward.wire.v1 import participants_pb2 as pb
from onceward.wire.values import (
    CLAIM,
    REQUEST,
    SETTLEMENT,
    phases_from_wire,
    phases_to_wire,
    progress_from_wire,
    progress_to_wire,
    settings_from_wire,
    settings_to_wire,
    snapshot_from_wire,
    snapshot_to_wire,
)

SAID = st.characters(codec="utf-8", exclude_characters="\0")
"""Free text as it arrives: what PostgreSQL cannot store is escaped on the way."""
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
bodies = st.dictionaries(st.text(), json_values, max_size=4)
documents = st.builds(Document, kind=st.just("test"), version=st.integers(1, 2**31 - 1), body=bodies)
counts = st.integers(0, 2**53 - 1)
snapshots = st.builds(
    Snapshot,
    positions=st.none() | documents,
    committables=st.lists(st.builds(Committable, slot=counts, document=documents), max_size=3).map(tuple),
    records=counts,
    bytes=counts,
    unchanged=st.booleans(),
    state=st.none() | documents,
    next_at_once=st.booleans(),
)
ids = st.integers(1, 2**53 - 1).map(CheckpointId)
names = st.sampled_from([ParticipantName(name) for name in ("source", "sink", "sink-2")])
slots = st.frozensets(counts, min_size=1, max_size=4)
instructions = st.one_of(
    st.builds(answers.Trigger, checkpoint=ids, base=ids, at_once=st.booleans()),
    st.builds(answers.Complete, checkpoint=ids, amendment=counts),
    st.builds(answers.Replay, checkpoint=ids, participant=names, slots=slots, amendment=counts),
    st.builds(answers.Cancel),
    st.builds(
        answers.Abort, checkpoint=ids, base=ids, reason=st.sampled_from(AbortReason), detail=st.text(SAID, max_size=50)
    ),
    st.builds(answers.Stop),
    st.builds(answers.Fail, reason=st.text(SAID, max_size=50)),
    st.builds(answers.Halt, reason=st.text(SAID, max_size=50)),
)


@given(snapshots)
def test_snapshots_come_out_as_they_went_in(snapshot: Snapshot) -> None:
    message = pb.Snapshot.FromString(snapshot_to_wire(snapshot).SerializeToString())
    assert snapshot_from_wire(message) == snapshot
    assert snapshot_from_wire(message).next_at_once == snapshot.next_at_once


@given(
    st.builds(
        ReadProgress,
        lag=st.none() | counts,
        measured_ago=st.integers(0, 10**12).map(lambda microseconds: timedelta(microseconds=microseconds)),
        records_per_second=st.floats(0, 2**53 - 1),
        partitions=st.lists(
            st.builds(PartitionLag, partition=st.text(SAID, max_size=50), position=counts, lag=st.none() | counts),
            max_size=MAX_SHOWN_PARTITIONS,
        ).map(tuple),
        other_partitions=counts,
    )
)
def test_how_far_is_read_comes_out_as_it_went_in(progress: ReadProgress) -> None:
    ordered = progress.with_most_lag(MAX_SHOWN_PARTITIONS)
    assert progress_from_wire(pb.ReadProgress.FromString(progress_to_wire(progress).SerializeToString())) == ordered
    assert sorted(map(str, ordered.partitions)) == sorted(map(str, progress.partitions))


@given(st.dictionaries(st.sampled_from(Phase), st.integers(0, 10**12).map(lambda us: timedelta(microseconds=us))))
def test_phases_come_out_as_they_went_in_and_unknown_ones_are_not_zero(phases: Phases) -> None:
    sent = pb.AcknowledgeRequest(phases=phases_to_wire(phases))
    arrived = phases_from_wire(pb.AcknowledgeRequest.FromString(sent.SerializeToString()).phases)
    assert arrived == phases
    assert sent.HasField("phases") is bool(phases)


@given(instructions)
def test_instructions_come_out_as_they_went_in(instruction: answers.Instruction) -> None:
    assert instruction_from_wire(instruction_to_wire(instruction)) == instruction


@given(
    st.builds(
        answers.Answer,
        verdict=st.sampled_from(answers.Verdict),
        detail=st.text(SAID, max_size=50),
        decision=st.none() | st.sampled_from(answers.Decision),
        retry_after_s=st.integers(0, 10**9).map(lambda microseconds: microseconds / 1e6),
        may_return=st.booleans(),
        generation=st.integers(0, 99).map(Generation),
    )
)
def test_answers_come_out_as_they_went_in(answer: answers.Answer) -> None:
    decoded = answer_from_wire(ANSWER.to_wire(answer))
    assert math.isclose(decoded.retry_after_s, answer.retry_after_s)
    assert replace(decoded, retry_after_s=answer.retry_after_s) == answer


def test_a_grant_and_a_request_travel_beside_their_answer() -> None:
    grant = answers.Grant(
        store_id="s",
        generation=Generation(2),
        completed=None,
        former_participants=(),
        lease_s=2.5,
        lost={},
        new_run=False,
    )
    request = Request(id=RequestId("r"), kind=CheckpointKind.SAVEPOINT)
    answer = ANSWER.to_wire(answers.Answer(verdict=answers.Verdict.ACCEPTED))
    assert answer_from_wire(answer, grant=grant).grant == grant
    assert answer_from_wire(answer, request=request).request == request


@given(
    st.builds(
        Settlement,
        slot=st.integers(1, 2**53 - 1),
        outcome=st.sampled_from(Outcome),
        evidence=st.text(SAID, min_size=1, max_size=50),
    )
)
def test_settlements_come_out_as_they_went_in(settlement: Settlement) -> None:
    assert SETTLEMENT.from_wire(SETTLEMENT.to_wire(settlement)) == settlement


@pytest.mark.parametrize("holder", ["", "d1"])
def test_claims_come_out_as_they_went_in(holder: str) -> None:
    claim = Claim(store_id="s", generation=Generation(2), completed=CheckpointId(3), holder=holder, amendment=1)
    assert CLAIM.from_wire(CLAIM.to_wire(claim)) == claim


@pytest.mark.parametrize("interval", ["1500us", 0, None])
def test_settings_come_out_as_they_went_in(interval: str | int | None) -> None:
    settings = CheckpointSettings(
        interval=interval,
        timeout="7min",
        min_pause="11ms",
        tolerable_failed_checkpoints=2,
        num_retained=3,
        lease="13s",
        stream_grace="5s",
        orphan_grace="17s",
    )
    usual = CheckpointSettings()
    same = [one.name for one in fields(settings) if getattr(settings, one.name) == getattr(usual, one.name)]
    assert same == [], "a field that is lost would come out with its default"
    assert settings_from_wire(settings_to_wire(settings)) == settings


participants = st.builds(
    Participant,
    name=names,
    role=st.sampled_from(Role),
    kind=st.just("test"),
    on_lost=st.sampled_from(OnLost),
    place=st.text(SAID, max_size=50),
    branch=st.none() | st.booleans(),
)
completed = st.builds(
    CompletedCheckpoint,
    id=ids,
    base=ids,
    generation=ids.map(Generation),
    snapshots=st.dictionaries(names, snapshots, max_size=2),
    settled=st.booleans(),
    kind=st.sampled_from(CheckpointKind),
    amendment=counts,
)


@given(
    st.builds(
        answers.Grant,
        store_id=st.just("s"),
        generation=ids.map(Generation),
        completed=st.none() | completed,
        lost=st.dictionaries(names, slots, max_size=2),
        former_participants=st.lists(participants, max_size=3).map(tuple),
        lease_s=st.just(2.5),
        new_run=st.booleans(),
    )
)
def test_grants_come_out_as_they_went_in(grant: answers.Grant) -> None:
    assert GRANT.from_wire(pb.Grant.FromString(GRANT.to_wire(grant).SerializeToString())) == grant


@given(
    st.builds(
        Request,
        id=st.just(RequestId("r")),
        kind=st.sampled_from(CheckpointKind),
        name=st.text(SAID, max_size=20),
        stop=st.booleans(),
        state=st.sampled_from(RequestState),
        checkpoint=ids,
        detail=st.text(SAID, max_size=20),
    )
)
def test_operator_requests_survive_a_round_trip(request: Request) -> None:
    assert REQUEST.from_wire(REQUEST.to_wire(request)) == request


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"request": "a b"}, "request: must be 1 to"),
        ({"kind": 0}, "CheckpointKind: is not specified"),
        ({"state": 99}, "RequestState: has the unknown number 99"),
        ({"checkpoint": -1}, "checkpoint: -1 is not within 0"),
    ],
)
def test_a_request_of_a_newer_coordinator_is_not_guessed_at(fields: dict[str, Any], why: str) -> None:
    message = REQUEST.to_wire(Request(id=RequestId("r"), kind=CheckpointKind.SAVEPOINT))
    for name, value in fields.items():
        setattr(message, name, value)
    with pytest.raises(MalformedError, match=why):
        REQUEST.from_wire(message)


def test_why_a_request_failed_is_sent_cut_and_the_longest_is_not() -> None:
    longest = "x" * MAX_TEXT
    for detail in (longest, longest + "y"):
        request = Request(id=RequestId("r"), kind=CheckpointKind.CHECKPOINT, detail=detail)
        assert REQUEST.from_wire(REQUEST.to_wire(request)).detail == longest


@pytest.mark.parametrize(("length", "fine"), [(0, False), (1, True), (MAX_TOKEN, True), (MAX_TOKEN + 1, False)])
def test_a_token_has_a_length_that_fits_its_column(length: int, fine: bool) -> None:
    if fine:
        assert as_token("~" * length, "driver") == "~" * length
    else:
        with pytest.raises(MalformedError, match=f"driver: must be 1 to {MAX_TOKEN}"):
            as_token("~" * length, "driver")


@pytest.mark.parametrize("check", [as_job, as_participant, as_kind])
def test_an_invalid_name_is_reported_with_its_start_and_end(check: Callable[[str], object]) -> None:
    with pytest.raises(MalformedError) as refused:
        check("x" * 150 + "!")
    assert "..." not in str(refused.value)
    assert "x" * 150 + "!" in str(refused.value)
    with pytest.raises(MalformedError) as refused:
        check("x" * 5000 + "!")
    field, _, said = str(refused.value).partition(": ")
    assert field == check.__name__.removeprefix("as_")
    begin, end = said.split(" ... ")
    assert (len(begin), len(end)) == (200, 90)
    assert "xxx" in begin


def test_an_enum_that_differs_from_the_wires_ends_the_program_when_it_starts() -> None:
    with pytest.raises(TypeError, match=r"Role and OnLost on the wire differ: \['HALT', 'REPLAY', 'SKIP'\]"):
        ClosedEnum(Role, pb.OnLost)


@pytest.mark.parametrize(("time_ms", "allowed_ms"), [(300, 150), (4_000, 1_000)])
def test_both_sides_ping_a_silent_peer_and_the_server_allows_it(time_ms: int, allowed_ms: int) -> None:
    keep_alive = KeepAlive(time_ms=time_ms, timeout_ms=900)
    client = {
        "grpc.keepalive_time_ms": time_ms,
        "grpc.keepalive_timeout_ms": 900,
        "grpc.http2.ping_timeout_ms": 900,
        "grpc.keepalive_permit_without_calls": 1,
        "grpc.http2.max_pings_without_data": 0,
    }
    assert dict(keep_alive.client_arguments()) == client
    assert dict(keep_alive.server_arguments()) == {
        **client,
        "grpc.http2.min_recv_ping_interval_without_data_ms": allowed_ms,
        "grpc.http2.max_ping_strikes": 0,
    }


def test_every_unspecified_enum_of_the_wire_is_refused() -> None:
    """A message that lacks an enum must not pass for one of its members."""
    enums = {
        name
        for file in (participants_pb2, operators_pb2)
        for name, enum in file.DESCRIPTOR.enum_types_by_name.items()
        if enum.values_by_number[0].name.endswith("_UNSPECIFIED")
    }
    assert enums == {name for file in (participants_pb2, operators_pb2) for name in file.DESCRIPTOR.enum_types_by_name}


@pytest.mark.parametrize(("depth", "fine"), [(MAX_DEPTH, True), (MAX_DEPTH + 1, False)])
def test_depth_counts_not_the_number_of_brackets(depth: int, fine: bool) -> None:
    wide = '{"a":' + "[" + ",".join(["{}"] * 1000) + "]" + "}"
    assert len(body_from_text(wide)["a"]) == 1000
    deep = '{"a":' * depth + "1" + "}" * depth
    if fine:
        assert body_from_text(deep)
    else:
        with pytest.raises(MalformedError, match="deep"):
            body_from_text(deep)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[]", "body: a document is a JSON object"),
        ("1", "body: a document is a JSON object"),
        ("", "body: not JSON: Expecting value"),
        ("{", "body: not JSON: Expecting property name"),
        ('{"a":NaN}', "body: NaN is not JSON"),
        ('{"a":-Infinity}', "body: -Infinity is not JSON"),
        (f'{{"a":1{"0" * 400}.0}}', f"body: 1{'0' * 39} is beyond what a double can hold"),
        ('{"a":1e999}', "body: 1e999 is beyond what a double can hold"),
        ('{"a":{"b":1,"b":1}}', "body: an object has the same key twice"),
        (f'{{"a":{"[" * MAX_DEPTH}{"]" * MAX_DEPTH}}}', f"body: more than {MAX_DEPTH} levels deep"),
        ('{"a":' * 100_000, f"body: more than {MAX_DEPTH} levels deep"),
    ],
    ids=lambda value: value[:20],
)
def test_a_body_that_readers_could_take_for_different_things_is_refused(text: str, why: str) -> None:
    with pytest.raises(MalformedError) as refused:
        body_from_text(text)
    assert str(refused.value).startswith(why)


def test_a_body_is_compact_and_valid_json() -> None:
    assert body_to_text({"a": [1, {"b": None}], "c": "ä"}) == '{"a":[1,{"b":null}],"c":"\\u00e4"}'
    with pytest.raises(ValueError, match="JSON"):
        body_to_text({"a": math.nan})


@given(bodies)
def test_bodies_are_read_as_they_were_written(body: dict[str, object]) -> None:
    assert body_from_text(body_to_text(body)) == body


@given(st.text())
def test_any_other_text_is_refused_and_nothing_else_is_raised(text: str) -> None:
    with contextlib.suppress(MalformedError):
        assert isinstance(body_from_text(text), dict)


@pytest.mark.parametrize(
    "message",
    [
        pb.Answer(),
        pb.Answer(verdict=200),  # type: ignore[arg-type]
        pb.Answer(verdict=pb.VERDICT_ACCEPTED, decision=pb.DECISION_UNSPECIFIED),
        pb.Answer(verdict=pb.VERDICT_ACCEPTED, decision=9),  # type: ignore[arg-type]
    ],
)
def test_a_driver_does_not_guess_at_an_answer_of_a_newer_coordinator(message: pb.Answer) -> None:
    with pytest.raises(MalformedError):
        answer_from_wire(message)


@pytest.mark.parametrize("message", [pb.Instruction(), pb.Instruction(abort=pb.Abort(checkpoint=1))])
def test_a_driver_does_not_guess_at_an_instruction_of_a_newer_coordinator(message: pb.Instruction) -> None:
    with pytest.raises(MalformedError):
        instruction_from_wire(message)


@pytest.mark.parametrize("text", ["a\0b", "a\ud800b", "ä" * (MAX_TEXT + 1), "\0" * MAX_TEXT])
def test_a_text_that_quotes_a_record_reaches_the_coordinator_whatever_it_holds(text: str) -> None:
    settlement = Settlement(slot=1, outcome=Outcome.LOST, evidence=text)
    sent = pb.Settlement.FromString(SETTLEMENT.to_wire(settlement).SerializeToString())
    said = SETTLEMENT.from_wire(sent).evidence
    assert "\0" not in said
    assert said[:1] == text[:1] or said.startswith("\\x00")
