"""The protocol's values as messages. Decoding raises MalformedError that names the field and the problem."""

from collections.abc import Collection
from datetime import timedelta

from onceward.common.links import Trouble
from onceward.protocol import encoded, sharing
from onceward.protocol.committing import Age
from onceward.protocol.phases import Phase, Phases
from onceward.protocol.read_progress import PartitionLag, ReadProgress
from onceward.protocol.requests import Request
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import (
    MAX_ID,
    Claim,
    Committable,
    CompletedCheckpoint,
    Document,
    JsonObject,
    Participant,
    RequestId,
    Settlement,
    Snapshot,
)
from onceward.wire import documents
from onceward.wire.documents import body_from_text, document_from_wire, document_to_wire
from onceward.wire.enums import CHECKPOINT_KIND, ON_LOST, OUTCOME, REQUEST_STATE, ROLE
from onceward.wire.limits import MAX_SHOWN_PARTITIONS, MAX_SLOTS
from onceward.wire.malformed import (
    MalformedError,
    as_base,
    as_checkpoint,
    as_count,
    as_generation,
    as_kind,
    as_microseconds,
    as_participant,
    as_rate,
    as_text,
    as_token,
)
from onceward.wire.text import text_to_wire
from onceward.wire.v1 import operators_pb2 as operators
from onceward.wire.v1 import participants_pb2 as pb

__all__ = [
    "age_from_wire",
    "age_to_wire",
    "claim_from_wire",
    "claim_to_wire",
    "committable_to_wire",
    "committables_from_wire",
    "completed_from_wire",
    "completed_to_wire",
    "participant_from_wire",
    "participant_to_wire",
    "partition_lag_from_wire",
    "partition_lag_to_wire",
    "phases_from_wire",
    "phases_to_wire",
    "progress_from_wire",
    "progress_to_wire",
    "request_from_wire",
    "request_to_wire",
    "settings_from_wire",
    "settings_to_wire",
    "settlement_from_wire",
    "settlement_to_wire",
    "slots_from_wire",
    "snapshot_from_wire",
    "snapshot_to_wire",
    "trouble_from_wire",
    "trouble_to_wire",
]

_MICROSECOND = timedelta(microseconds=1)
_DURATIONS = ("interval", "timeout", "min_pause", "lease", "stream_grace", "orphan_grace")
_PHASES = {phase: f"{phase.name.lower()}_us" for phase in Phase}
_COUNTS = ("tolerable_failed_checkpoints", "num_retained")


def _microseconds(duration: timedelta, least: int = 0) -> int:
    """Within what is taken: a clock that was set, or a sink without a timeout, must not fail the call that reports."""
    return min(max(duration // _MICROSECOND, least), MAX_ID)


def age_to_wire(value: Age) -> pb.TransactionAge:
    return pb.TransactionAge(
        transaction=text_to_wire(value.transaction),
        open_for_us=_microseconds(value.open_for),
        timeout_us=_microseconds(value.timeout, least=1),
    )


def age_from_wire(message: pb.TransactionAge) -> Age:
    return Age(
        transaction=as_text(message.transaction, "transaction"),
        open_for=as_microseconds(message.open_for_us, "open_for_us"),
        timeout=as_microseconds(message.timeout_us, "timeout_us", least=1),
    )


def trouble_to_wire(value: Trouble) -> pb.LinkTrouble:
    return pb.LinkTrouble(
        link=text_to_wire(value.link),
        for_us=_microseconds(timedelta(seconds=value.for_s)),
        why=text_to_wire(value.why),
        waiting=text_to_wire(value.waiting),
        held=value.held,
    )


def trouble_from_wire(message: pb.LinkTrouble) -> Trouble:
    return Trouble(
        link=as_text(message.link, "link"),
        for_s=as_microseconds(message.for_us, "for_us").total_seconds(),
        why=as_text(message.why, "why"),
        waiting=as_text(message.waiting, "waiting"),
        held=message.held,
    )


def progress_to_wire(value: ReadProgress) -> pb.ReadProgress:
    shown = value.with_most_lag(MAX_SHOWN_PARTITIONS)
    return pb.ReadProgress(
        lag=shown.lag,
        measured_us=_microseconds(shown.measured_ago),
        records_per_second=shown.records_per_second,
        partitions=map(partition_lag_to_wire, shown.partitions),
        other_partitions=shown.other_partitions,
    )


def progress_from_wire(message: pb.ReadProgress) -> ReadProgress:
    if len(message.partitions) > MAX_SHOWN_PARTITIONS:
        raise MalformedError(f"partitions: {len(message.partitions)}, must be at most {MAX_SHOWN_PARTITIONS}")
    return ReadProgress(
        lag=as_count(message.lag, "lag") if message.HasField("lag") else None,
        measured_ago=as_microseconds(message.measured_us, "measured_us"),
        records_per_second=as_rate(message.records_per_second, "records_per_second"),
        partitions=tuple(map(partition_lag_from_wire, message.partitions)),
        other_partitions=as_count(message.other_partitions, "other_partitions"),
    )


def partition_lag_to_wire(value: PartitionLag) -> pb.PartitionLag:
    return pb.PartitionLag(partition=text_to_wire(value.partition), position=value.position, lag=value.lag)


def partition_lag_from_wire(message: pb.PartitionLag) -> PartitionLag:
    return PartitionLag(
        partition=as_text(message.partition, "partition"),
        position=as_count(message.position, "position"),
        lag=as_count(message.lag, "lag") if message.HasField("lag") else None,
    )


def phases_to_wire(value: Phases) -> pb.Phases | None:
    if not value:
        return None
    return pb.Phases(**{_PHASES[phase]: _microseconds(took) for phase, took in value.items()})


def phases_from_wire(message: pb.Phases) -> Phases:
    return {
        phase: as_microseconds(getattr(message, name), name)
        for phase, name in _PHASES.items()
        if message.HasField(name)  # type: ignore[arg-type]
    }


def participant_to_wire(value: Participant) -> pb.Participant:
    return pb.Participant(
        name=value.name,
        role=ROLE.to_wire(value.role),  # type: ignore[arg-type]
        kind=value.kind,
        on_lost=ON_LOST.to_wire(value.on_lost),  # type: ignore[arg-type]
    )


def participant_from_wire(message: pb.Participant) -> Participant:
    return Participant(
        name=as_participant(message.name),
        role=ROLE.from_wire(message.role),
        kind=as_kind(message.kind),
        on_lost=ON_LOST.from_wire(message.on_lost),
    )


def snapshot_to_wire(value: Snapshot) -> pb.Snapshot:
    shared, bodies = encoded.split([committable.document.body for committable in value.committables])
    return pb.Snapshot(
        positions=document_to_wire(value.positions) if value.positions is not None else None,
        shared_body=shared,
        committables=[_committable(one, body) for one, body in zip(value.committables, bodies, strict=True)],
        records=value.records,
        bytes=value.bytes,
        unchanged=value.unchanged,
        next_at_once=value.next_at_once,
    )


def snapshot_from_wire(message: pb.Snapshot, *, keep_text: bool = False) -> Snapshot:
    """Raises MalformedError.

    :param keep_text: check the bodies, and keep their text.
    """
    positions = document_from_wire(message.positions, keep_text=keep_text) if message.HasField("positions") else None
    return Snapshot(
        positions=positions,
        committables=committables_from_wire(message.committables, message.shared_body, keep_text=keep_text),
        records=as_count(message.records, "records"),
        bytes=as_count(message.bytes, "bytes"),
        unchanged=message.unchanged,
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


def settlement_to_wire(value: Settlement) -> pb.Settlement:
    return pb.Settlement(
        slot=value.slot,
        outcome=OUTCOME.to_wire(value.outcome),  # type: ignore[arg-type]
        evidence=text_to_wire(value.evidence),
    )


def settlement_from_wire(message: pb.Settlement) -> Settlement:
    return Settlement(
        slot=as_count(message.slot, "slot"),
        outcome=OUTCOME.from_wire(message.outcome),
        evidence=as_text(message.evidence, "evidence"),
    )


def request_to_wire(value: Request) -> operators.CheckpointRequest:
    return operators.CheckpointRequest(
        request=value.id,
        kind=CHECKPOINT_KIND.to_wire(value.kind),  # type: ignore[arg-type]
        name=value.name,
        stop=value.stop,
        state=REQUEST_STATE.to_wire(value.state),  # type: ignore[arg-type]
        checkpoint=value.checkpoint,
        detail=text_to_wire(value.detail),
    )


def request_from_wire(message: operators.CheckpointRequest) -> Request:
    return Request(
        id=RequestId(as_token(message.request, "request")),
        kind=CHECKPOINT_KIND.from_wire(message.kind),
        name=message.name,
        stop=message.stop,
        state=REQUEST_STATE.from_wire(message.state),
        checkpoint=as_base(message.checkpoint, "checkpoint"),
        detail=message.detail,
    )


def claim_to_wire(value: Claim) -> pb.Claim:
    return pb.Claim(
        store_id=value.store_id,
        generation=value.generation,
        completed=value.completed,
        holder=value.holder,
        amendment=value.amendment,
    )


def claim_from_wire(message: pb.Claim) -> Claim:
    return Claim(
        store_id=as_token(message.store_id, "store_id"),
        generation=as_generation(message.generation),
        completed=as_base(message.completed, "completed"),
        holder=as_token(message.holder, "holder") if message.holder else "",
        amendment=as_count(message.amendment, "amendment"),
    )


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


def completed_to_wire(value: CompletedCheckpoint) -> pb.CompletedCheckpoint:
    return pb.CompletedCheckpoint(
        checkpoint=value.id,
        base=value.base,
        generation=value.generation,
        snapshots={name: snapshot_to_wire(snapshot) for name, snapshot in value.snapshots.items()},
        settled=value.settled,
        kind=CHECKPOINT_KIND.to_wire(value.kind),  # type: ignore[arg-type]
        amendment=value.amendment,
    )


def completed_from_wire(message: pb.CompletedCheckpoint) -> CompletedCheckpoint:
    return CompletedCheckpoint(
        id=as_checkpoint(message.checkpoint),
        base=as_base(message.base),
        generation=as_generation(message.generation),
        snapshots={as_participant(name): snapshot_from_wire(one) for name, one in message.snapshots.items()},
        settled=message.settled,
        kind=CHECKPOINT_KIND.from_wire(message.kind),
        amendment=as_count(message.amendment, "amendment"),
    )
