"""The slots of one checkpoint, as its page lists them. Pure.

The coordinator does not know the documents of sinks and sources. These keys are shown wherever a body has them, in the
form that ours have: ``transactional_id``, ``records``, ``bytes``, ``topics`` or ``destination``, and ``input_text`` or
for lack of it ``inputs``. Everything else is in the JSON.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onceward.protocol.values import CheckpointState, Committable, Outcome, ParticipantName, Settlement
from onceward.wire.rows import CheckpointDescription

__all__ = ["MAX_SLOTS", "PartitionPosition", "Slot", "SlotList", "positions_of", "slots_of"]

MAX_SLOTS = 200
"""In one answer, of each participant."""
_MAX_INPUT = 500
"""Characters."""
_MAX_POSITIONS = 200


@dataclass(frozen=True, kw_only=True)
class Slot:
    number: int
    transaction: str
    where: str
    """Topics, or a table."""
    records: int | None
    bytes: int | None
    input: str
    """What the source said of it; from documents of earlier releases, its first splits."""
    outcome: Outcome | None
    """None if nothing is recorded and the checkpoint is not settled."""
    evidence: str


@dataclass(frozen=True, kw_only=True)
class SlotList:
    """Slots of one participant: those that are not committed first, then by number."""

    participant: ParticipantName
    slots: Sequence[Slot]
    more: int


@dataclass(frozen=True, kw_only=True)
class PartitionPosition:
    topic: str
    partition: str
    next: int
    end: int | None
    """Where the job ends in it; None for never."""


def slots_of(found: CheckpointDescription) -> list[SlotList]:
    recorded = {(one.participant, one.settlement.slot): one.settlement for one in found.settlements}
    settled = found.summary.state is CheckpointState.SETTLED

    def listed(participant: ParticipantName, committables: Sequence[Committable]) -> SlotList:
        def usual(slot: int) -> bool:
            settlement = recorded.get((participant, slot))
            return settlement is None or settlement.outcome is Outcome.COMMITTED

        ordered = sorted(committables, key=lambda one: (usual(one.slot), one.slot))
        shown = [_slot(one, recorded.get((participant, one.slot)), settled=settled) for one in ordered[:MAX_SLOTS]]
        return SlotList(participant=participant, slots=shown, more=len(ordered) - len(shown))

    return [listed(name, one.committables) for name, one in found.snapshots.items() if one.committables]


def positions_of(body: Mapping[str, Any]) -> list[PartitionPosition]:
    """The positions by partition, at most 200; empty for a body of another form than Kafka's."""
    found = []
    for topic, content in _mapping(body.get("topics")).items():
        for partition, cursor in _mapping(_mapping(content).get("partitions")).items():
            following, end = _number(_mapping(cursor).get("next")), _number(_mapping(cursor).get("end"))
            if following is not None:
                found.append(PartitionPosition(topic=str(topic), partition=str(partition), next=following, end=end))
    return found[:_MAX_POSITIONS]


def _slot(committable: Committable, settlement: Settlement | None, *, settled: bool) -> Slot:
    body = committable.document.body
    topics = ", ".join(sorted(map(str, _mapping(body.get("topics")))))
    read = body.get("input_text") or (json.dumps(body["inputs"]) if "inputs" in body else "")
    return Slot(
        number=committable.slot,
        transaction=str(body.get("transactional_id", "")),
        where=(topics or str(body.get("destination", "")))[:_MAX_INPUT],
        records=_number(body.get("records")),
        bytes=_number(body.get("bytes")),
        input=str(read)[:_MAX_INPUT],
        outcome=settlement.outcome if settlement is not None else Outcome.COMMITTED if settled else None,
        evidence=settlement.evidence if settlement is not None else "",
    )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
