"""A codec carries every field of its dataclass, or fails at import; listings come out as they went in."""

from collections.abc import Mapping
from dataclasses import dataclass, is_dataclass
from datetime import UTC, datetime, timedelta
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onceward.protocol.committing import Age
from onceward.protocol.events import ForgetJob, Renew, StopJob
from onceward.protocol.phases import Phase
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import (
    CheckpointId,
    Claim,
    Document,
    Generation,
    JobName,
    Outcome,
    Participant,
    ParticipantName,
    RequestId,
    Role,
    Snapshot,
)
from onceward.wire import listings, rows
from onceward.wire.codec import By, Codec, decoder
from onceward.wire.limits import MAX_TEXT
from onceward.wire.malformed import MalformedError
from onceward.wire.v1 import operators_pb2 as pb
from onceward.wire.v1.participants_pb2 import RenewRequest

IDS = st.integers(1, 2**53 - 1)
DURATIONS = st.integers(0, 10**12).map(lambda us: timedelta(microseconds=us))
TYPES: Mapping[Any, st.SearchStrategy[Any]] = {
    str: st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=5),
    int: IDS,
    float: st.floats(0, 1e9),
    JobName: st.just(JobName("orders")),
    ParticipantName: st.sampled_from([ParticipantName("sink"), ParticipantName("other")]),
    timedelta: DURATIONS,
    bool: st.booleans(),
    datetime: st.integers(1, 10**12).map(lambda ms: datetime.fromtimestamp(ms / 1000, UTC)),
    Document: st.just(Document(kind="kafka", version=1, body={"a": 1})),
    Snapshot: st.builds(Snapshot, records=IDS),
    CheckpointSettings: st.just(CheckpointSettings(interval=timedelta(seconds=3), timeout=timedelta(seconds=5))),
    rows.CommitTimes: st.builds(
        rows.CommitTimes, commits=IDS, median=DURATIONS, p99=DURATIONS, worst=DURATIONS, window=DURATIONS
    ),
    Age: st.builds(Age, transaction=st.just("t"), open_for=DURATIONS, timeout=DURATIONS.filter(bool)),
    Claim: st.just(Claim(store_id="s", generation=Generation(2), completed=CheckpointId(6), holder="d", amendment=1)),
    Participant: st.just(Participant(name=ParticipantName("sink"), role=Role.SINK, kind="kafka")),
    CheckpointId: IDS.map(CheckpointId),
    Generation: IDS.map(Generation),
    RequestId: st.just(RequestId("r")),
    Mapping[ParticipantName, Mapping[int, Outcome]]: st.dictionaries(
        st.just(ParticipantName("sink")), st.dictionaries(IDS, st.sampled_from(Outcome), min_size=1)
    ),
    Mapping[Phase, timedelta]: st.dictionaries(st.sampled_from(Phase), DURATIONS),
}
CODECS: Mapping[str, type[Any]] = {
    "JOB_SUMMARY": rows.JobSummary,
    "JOB_DESCRIPTION": rows.JobDescription,
    "CHECKPOINT_SUMMARY": rows.CheckpointSummary,
    "CHECKPOINT_DESCRIPTION": rows.CheckpointDescription,
    "LOSS_REPORT": rows.LossReport,
    "GENERATION_SUMMARY": rows.GenerationSummary,
    "HISTORY_ENTRY": rows.HistoryEntry,
    "COORDINATOR_DESCRIPTION": rows.CoordinatorDescription,
}


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Any value of a field with this type."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in TYPES:
        return TYPES[hint]
    if NoneType in arguments:
        return st.none() | values(next(one for one in arguments if one is not NoneType))
    if origin is tuple:
        return st.lists(values(arguments[0]), max_size=2).map(tuple)
    if origin is Mapping:
        return st.dictionaries(*map(values, arguments), max_size=2)
    if isinstance(hint, type) and is_dataclass(hint):
        return st.builds(hint, **{name: values(one) for name, one in get_type_hints(hint).items()})
    return st.sampled_from(hint)


@pytest.mark.parametrize("name", CODECS)
@settings(max_examples=25)
@given(data=st.data())
def test_listings_come_out_as_they_went_in(name: str, data: st.DataObject) -> None:
    codec: Codec[Any, Any] = getattr(listings, name)
    message = codec.to_wire(value := data.draw(values(CODECS[name])))
    assert codec.from_wire(type(message).FromString(message.SerializeToString())) == value


@dataclass(frozen=True, kw_only=True)
class _Wait:
    what: str
    since: datetime | None


@dataclass(frozen=True, kw_only=True)
class _Longer(_Wait):
    until: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class _Shorter:
    what: str


@dataclass(frozen=True, kw_only=True)
class _Vague:
    what: str | None
    since: datetime | None


def test_a_field_that_one_side_lacks_is_an_error_at_import() -> None:
    Codec(_Wait, pb.Wait)
    Codec(_Longer, pb.Wait, without=["until"])
    with pytest.raises(TypeError, match=r"_Longer.until: Wait has no field until_ms"):
        Codec(_Longer, pb.Wait)
    with pytest.raises(TypeError, match=r"_Shorter and Wait differ: \['since_ms'\]"):
        Codec(_Shorter, pb.Wait)
    with pytest.raises(TypeError, match=r"_Wait and Wait differ: \['until'\]"):
        Codec(_Wait, pb.Wait, until=By(name="until_ms"))


def test_a_value_that_may_be_none_needs_a_field_that_may_be_absent() -> None:
    with pytest.raises(TypeError, match=r"_Vague.what: Wait.what cannot be absent"):
        Codec(_Vague, pb.Wait)


def test_a_request_has_every_field_of_its_event_and_no_other() -> None:
    with pytest.raises(TypeError, match=r"Renew and RenewRequest differ: \['machine'\]"):
        decoder(Renew, RenewRequest, unread=("troubles", "oldest", "progress"), driver=By(from_wire=str))
    with pytest.raises(TypeError, match=r"StopJob and StopJobRequest differ: \['reason'\]"):
        decoder(StopJob, pb.StopJobRequest, unread=("reason",))
    with pytest.raises(TypeError, match=r"ForgetJob.reason: StopJobRequest has no field reason"):
        decoder(ForgetJob, pb.StopJobRequest)


def test_numbers_and_texts_are_refused_only_where_they_are_checked() -> None:
    strict, lenient = Codec(_Wait, pb.Wait), Codec(_Wait, pb.Wait, checks=False)
    long = pb.Wait(what="x" * (MAX_TEXT + 1))
    assert lenient.from_wire(long).what == long.what
    with pytest.raises(MalformedError, match=f"what: {MAX_TEXT + 1} characters"):
        strict.from_wire(long)
