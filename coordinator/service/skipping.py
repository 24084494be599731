"""Moves positions past deleted input, with plug-ins; the coordinator itself never reads positions."""

from dataclasses import dataclass

from onceward.coordinator.service.kinds import installed_kinds, part
from onceward.protocol.encoded import decoded
from onceward.protocol.kinds import PositionMover
from onceward.protocol.values import CheckpointId, CompletedCheckpoint, Document, ParticipantName

__all__ = ["Skip", "Where", "skip_of"]


@dataclass(frozen=True, kw_only=True)
class Where:
    """Where a person wants reading of one partition to continue."""

    topic: str
    partition: int
    offset: int
    """The offset to read next."""


@dataclass(frozen=True, kw_only=True)
class Skip:
    base: CheckpointId
    participant: ParticipantName
    positions: Document
    """The participant's positions in ``base``, with one partition moved."""
    skipped: str
    """Description of the skipped input, for display."""


def skip_of(completed: CompletedCheckpoint, where: Where) -> Skip | str:
    """The move of one partition, or why it is not possible. The core decides whether it is allowed now."""
    problems = []
    for name, positions in _positions(completed).items():
        mover = _mover(positions.kind)
        if mover is None:
            problems.append(f"{name}: no plug-in can move positions of kind {positions.kind}")
            continue
        try:
            moved, former = mover(positions, where.topic, where.partition, where.offset)
        except ValueError as error:
            problems.append(f"{name}: {error}")
            continue
        skipped = f"{where.topic}-{where.partition} [{former}, {where.offset})"
        if former == where.offset:
            skipped = f"what replaced records before offset {former} of {where.topic}-{where.partition}"
        return Skip(base=completed.id, participant=name, positions=moved, skipped=skipped)
    return "; ".join(problems) or f"checkpoint {completed.id} has no positions"


def _positions(completed: CompletedCheckpoint) -> dict[ParticipantName, Document]:
    return {
        name: decoded(snapshot.positions)
        for name, snapshot in sorted(completed.snapshots.items())
        if snapshot.positions is not None
    }


def _mover(document: str) -> PositionMover | None:
    """The installed mover for documents of this kind."""
    for name, kind in installed_kinds("changed").items():
        if document in kind.positions:
            mover: PositionMover = part(name, kind.positions[document], "changed")
            return mover
    return None
