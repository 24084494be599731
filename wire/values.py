"""The protocol's values as messages. Decoding raises MalformedError that names the field and the problem."""

from collections.abc import Collection
from datetime import timedelta
from functools import partial
from typing import Final

from onceward.common.links import Trouble
from onceward.protocol import encoded, sharing
from onceward.protocol.committing import Age
from onceward.protocol.phases import Phase, Phases
from onceward.protocol.read_progress import PartitionLag, ReadProgress
from onceward.protocol.requests import Request
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import (
    Claim,
    Committable,
    CompletedCheckpoint,
    Document,
    JsonObject,
    Participant,
    Settlement,
    Snapshot,
)
from onceward.wire import documents
from onceward.wire.codec import By, Codec, carry, microseconds
from onceward.wire.documents import body_from_text, document_from_wire, document_to_wire
from onceward.wire.limits import MAX_SHOWN_PARTITIONS, MAX_SLOTS
from onceward.wire.malformed import (
    MalformedError,
    as_base,
    as_count,
    as_kind,
    as_microseconds,
    as_token,
)
from onceward.wire.v1 import operators_pb2 as operators
from onceward.wire.v1 import participants_pb2 as pb

__all__ = [
    "AGE",
    "CLAIM",
    "COMPLETED",
    "PARTICIPANT",
    "PARTITION_LAG",
    "REQUEST",
    "SETTLEMENT",
    "TROUBLE",
    "committable_to_wire",
    "committables_from_wire",
    "phases_from_wire",
    "phases_to_wire",
    "progress_from_wire",
    "progress_to_wire",
    "settings_from_wire",
    "settings_to_wire",
    "slots_from_wire",
    "snapshot_from_wire",
    "snapshot_to_wire",
]

_MICROSECOND = timedelta(microseconds=1)
_DURATIONS = ("interval", "timeout", "min_pause", "lease", "stream_grace", "orphan_grace")
_PHASES = {phase: f"{phase.name.lower()}_us" for phase in Phase}
_COUNTS = ("tolerable_failed_checkpoints", "num_retained")


def progress_to_wire(value: ReadProgress) -> pb.ReadProgress:
    return _PROGRESS.to_wire(value.with_most_lag(MAX_SHOWN_PARTITIONS))


def progress_from_wire(message: pb.ReadProgress) -> ReadProgress:
    if len(message.partitions) > MAX_SHOWN_PARTITIONS:
        raise MalformedError(f"partitions: {len(message.partitions)}, must be at most {MAX_SHOWN_PARTITIONS}")
    return _PROGRESS.from_wire(message)


def phases_to_wire(value: Phases) -> pb.Phases | None:
    if not value:
        return None
    return pb.Phases(**{_PHASES[phase]: microseconds(took) for phase, took in value.items()})


def phases_from_wire(message: pb.Phases) -> Phases:
    return {
        phase: as_microseconds(getattr(message, name), name)
        for phase, name in _PHASES.items()
        if message.HasField(name)  # type: ignore[arg-type]
    }


def snapshot_to_wire(value: Snapshot) -> pb.Snapshot:
    shared, bodies = encoded.split([committable.document.body for committable in value.committables])
    return pb.Snapshot(
        positions=document_to_wire(value.positions) if value.positions is not None else None,
        shared_body=shared,
        committables=[_committable(one, body) for one, body in zip(value.committables, bodies, strict=True)],
        records=value.records,
        bytes=value.bytes,
        unchanged=value.unchanged,
        state=document_to_wire(value.state) if value.state is not None else None,
        next_at_once=value.next_at_once,
    )


def snapshot_from_wire(message: pb.Snapshot, *, keep_text: bool = False) -> Snapshot:
    """Raises MalformedError.

    :param keep_text: check the bodies, and keep their text.
    """
    positions = document_from_wire(message.positions, keep_text=keep_text) if message.HasField("positions") else None
    state = document_from_wire(message.state, keep_text=keep_text) if message.HasField("state") else None
    return Snapshot(
        positions=positions,
        committables=committables_from_wire(message.committables, message.shared_body, keep_text=keep_text),
        records=as_count(message.records, "records"),
        bytes=as_count(message.bytes, "bytes"),
        unchanged=message.unchanged,
        state=state,
        next_at_once=message.next_at_once,
    )


def committable_to_wire(value: Committable) -> pb.Committable:
    return _committable(value, encoded.body_to_text(value.document.body))


def _committable(value: Committable, body: str) -> pb.Committable:
    document = pb.Document(kind=value.document.kind, version=value.document.version, body=body)
    return pb.Committable(slot=value.slot, document=document)


def committables_from_wire(
    messages: Collection[pb.Committable], shared_body: str = "", *, keep_text: bool = False
) -> tuple[Committable, ...]:
    """Raises MalformedError.

    :param shared_body: members of all bodies that are not in ``messages``.
    :param keep_text: check the bodies, and keep their text.
    """
    if len(messages) > MAX_SLOTS:
        raise MalformedError(f"committables: {len(messages)}, must be at most {MAX_SLOTS}")
    shared = body_from_text(shared_body) if shared_body else {}
    shared_text = documents.encoded(shared_body, shared).own if shared else ""
    return tuple(_committable_from_wire(one, shared, shared_text if keep_text else None) for one in messages)


def _committable_from_wire(message: pb.Committable, shared: JsonObject, shared_text: str | None) -> Committable:
    if not message.HasField("document"):
        raise MalformedError("committable: has no document")
    own = document_from_wire(message.document)
    try:
        body = sharing.merged(shared, own.body)
    except ValueError as error:
        raise MalformedError(f"shared_body: {error}") from None
    if shared_text is not None:
        body = documents.encoded(message.document.body, own.body, shared_text)
    return Committable(
        slot=as_count(message.slot, "slot"), document=Document(kind=own.kind, version=own.version, body=body)
    )


def slots_from_wire(slots: Collection[int]) -> frozenset[int]:
    """Decode slots. Raises MalformedError also when there are none, too many, and when one is named twice."""
    if len(slots) > MAX_SLOTS:
        raise MalformedError(f"slots: {len(slots)}, must be at most {MAX_SLOTS}")
    listed = [as_count(slot, "slots") for slot in slots]
    if not listed or len(set(listed)) != len(listed):
        raise MalformedError("slots: name at least one, and each once")
    return frozenset(listed)


def settings_to_wire(value: CheckpointSettings) -> pb.CheckpointSettings:
    given = [name for name in _DURATIONS if getattr(value, name) is not None]
    durations = {f"{name}_us": round(value.seconds(name) * 1e6) for name in given}
    counts = {name: getattr(value, name) for name in _COUNTS}
    return pb.CheckpointSettings(**durations, **counts)


def settings_from_wire(message: pb.CheckpointSettings) -> CheckpointSettings:
    try:
        durations = {name: getattr(message, f"{name}_us") * _MICROSECOND for name in _DURATIONS}
        if not message.HasField("interval_us"):
            durations["interval"] = None
        return CheckpointSettings(**durations, **{name: getattr(message, name) for name in _COUNTS})
    except (ValueError, OverflowError) as error:
        raise MalformedError(f"settings: {error}") from None


AGE: Final = Codec(Age, pb.TransactionAge, timeout=By(from_wire=partial(as_microseconds, field="timeout_us", least=1)))
TROUBLE: Final = Codec(Trouble, pb.LinkTrouble)
PARTITION_LAG: Final = Codec(PartitionLag, pb.PartitionLag)
_PROGRESS: Final = Codec(ReadProgress, pb.ReadProgress, measured_ago=By(name="measured_us"))
PARTICIPANT: Final = Codec(Participant, pb.Participant, kind=By(from_wire=as_kind))
SETTLEMENT: Final = Codec(Settlement, pb.Settlement)
CLAIM: Final = Codec(
    Claim,
    pb.Claim,
    store_id=By(from_wire=partial(as_token, field="store_id")),
    holder=By(from_wire=lambda holder: holder and as_token(holder, "holder")),
)
REQUEST: Final = Codec(
    Request,
    operators.CheckpointRequest,
    id=By(name="request"),
    checkpoint=By(from_wire=partial(as_base, field="checkpoint")),
)
carry(Phases, phases_to_wire, phases_from_wire)
carry(frozenset[int], sorted, slots_from_wire)
carry(tuple[Committable, ...], partial(map, committable_to_wire), committables_from_wire)
carry(CheckpointSettings, settings_to_wire, settings_from_wire)
carry(Document, document_to_wire, document_from_wire)
carry(Snapshot, snapshot_to_wire, snapshot_from_wire)
COMPLETED: Final = Codec(CompletedCheckpoint, pb.CompletedCheckpoint, id=By(name="checkpoint"))
