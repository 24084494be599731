"""Protocol values as JSON text in the store. Reading raises the errors of ``json`` and of the values' constructors."""

import json
import sys
from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import chain, repeat
from typing import Any

from onceward.protocol import encoded, sharing
from onceward.protocol.durable import AbortedCheckpoint, Durable, Loss, Resolution, UndecidedCheckpoint
from onceward.protocol.encoded import EncodedBody
from onceward.protocol.facts import AbortReason
from onceward.protocol.phases import Phase, Phases
from onceward.protocol.requests import Ending, Request, RequestState, Ruling
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import (
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
    Snapshot,
)

__all__ = [
    "document_from_text",
    "document_of",
    "document_to_text",
    "durable_parts",
    "phases_from_text",
    "phases_to_text",
    "snapshots_from_text",
    "snapshots_to_text",
    "state_from_text",
]


_MICROSECOND = timedelta(microseconds=1)
_PHASES = sorted(Phase, key=lambda phase: phase.place)


def phases_to_text(phases: Phases) -> str | None:
    """Microseconds by the places of the phases, nothing where one is unknown; about 60 characters."""
    if not phases:
        return None
    return ",".join(str(phases[phase] // _MICROSECOND) if phase in phases else "" for phase in _PHASES)


def phases_from_text(text: str | None) -> Phases:
    numbers = text.split(",") if text else ()
    return {
        phase: int(number) * _MICROSECOND
        for phase, number in zip(_PHASES, numbers, strict=False)  # an older program knew fewer
        if number
    }


def document_of(durable: Durable) -> str:
    """The part of a job's durable state that its row stores outside its columns."""
    pending, aborted, ruled, adoption = durable.pending, durable.aborted, durable.resolution, durable.adoption
    return _text(
        {
            "participants": [*map(_of_participant, durable.participants)],
            "gone": [*map(_of_participant, durable.gone)],
            "places": [[one.place for one in each] for each in (durable.participants, durable.gone)],
            "branches": [[one.branch for one in each] for each in (durable.participants, durable.gone)],
            "settings": durable.settings.to_json(),
            "pending": [pending.id, pending.base, pending.kind.value, pending.request] if pending else None,
            "aborted": [aborted.id, aborted.generation, aborted.reason.name, aborted.detail] if aborted else None,
            "failures": durable.failures,
            "former_failures": durable.former_failures,
            "failure": durable.failure,
            "finished": durable.finished,
            "ending": durable.ending.value if durable.ending else None,
            "requests": [
                [one.id, one.kind.value, one.name, one.stop, one.state.value, one.checkpoint, one.detail]
                for one in durable.requests
            ],
            "holders": list(durable.holders.items()),
            "losses": [[loss.checkpoint, loss.participant, sorted(loss.slots)] for loss in durable.losses],
            "replaying": {name: sorted(slots) for name, slots in durable.replaying.items()},
            "lost": durable.lost,
            "takeover": durable.takeover,
            "adoption": [adoption.store_id, adoption.generation, adoption.completed] if adoption else None,
            "outcomes": {
                name: [[slot, outcome.value] for slot, outcome in sorted(slots.items())]
                for name, slots in durable.outcomes.items()
            },
            "resolution": [ruled.checkpoint, ruled.participant, sorted(ruled.slots), ruled.ruling.value]
            if ruled
            else None,
        }
    )


def durable_parts(text: str) -> dict[str, Any]:
    """The fields of ``Durable`` stored in a job's document."""
    raw = json.loads(text)
    pending, aborted = raw["pending"], raw["aborted"]
    (places, gone_places), (branches, gone_branches) = (raw.get(key, ((), ())) for key in ("places", "branches"))
    return {
        "participants": _participants(raw["participants"], places, branches),
        "gone": _participants(raw.get("gone", ()), gone_places, gone_branches),  # as below
        "settings": CheckpointSettings.from_json(raw["settings"]),
        "pending": _undecided(*pending) if pending is not None else None,
        "aborted": _aborted(*aborted) if aborted is not None else None,
        "failures": raw["failures"],
        "former_failures": raw.get("former_failures", 0),  # a store of an older program does not have them
        "failure": raw.get("failure", ""),
        "finished": CheckpointId(raw["finished"]),
        "ending": Ending(raw["ending"]) if raw["ending"] is not None else None,
        "requests": tuple(_request(*one) for one in raw["requests"]),
        "holders": {Generation(generation): driver for generation, driver in raw["holders"]},
        "losses": tuple(_loss(*loss) for loss in raw["losses"]),
        "replaying": {ParticipantName(name): frozenset(slots) for name, slots in raw["replaying"].items()},
        "lost": raw["lost"],
        "takeover": Generation(raw["takeover"]),
        "adoption": _claim(*raw["adoption"]) if raw["adoption"] is not None else None,
        "outcomes": {
            ParticipantName(name): {slot: Outcome(outcome) for slot, outcome in slots}
            for name, slots in raw["outcomes"].items()
        },
        "resolution": _resolution(*raw["resolution"]) if raw["resolution"] is not None else None,
    }


def _of_participant(one: Participant) -> list[str]:
    return [one.name, one.role.value, one.kind, one.on_lost.value]


def _participants(
    rows: Sequence[Sequence[str]], places: Sequence[str], branches: Sequence[bool | None]
) -> tuple[Participant, ...]:
    known = zip(rows, chain(places, repeat("")), chain(branches, repeat(None)), strict=False)
    return tuple(_participant(*row, place=place, branch=branch) for row, place, branch in known)


def _participant(name: str, role: str, kind: str, on_lost: str, **known: Any) -> Participant:
    return Participant(name=ParticipantName(name), role=Role(role), kind=kind, on_lost=OnLost(on_lost), **known)


def _undecided(checkpoint: int, base: int, kind: str, request: str | None) -> UndecidedCheckpoint:
    return UndecidedCheckpoint(
        id=CheckpointId(checkpoint),
        base=CheckpointId(base),
        kind=CheckpointKind(kind),
        request=RequestId(request) if request is not None else None,
    )


def _aborted(checkpoint: int, generation: int, reason: str, detail: str) -> AbortedCheckpoint:
    return AbortedCheckpoint(
        id=CheckpointId(checkpoint), generation=Generation(generation), reason=AbortReason[reason], detail=detail
    )


def _resolution(checkpoint: int, participant: str, slots: list[int], ruling: str) -> Resolution:
    return Resolution(
        checkpoint=CheckpointId(checkpoint),
        participant=ParticipantName(participant),
        slots=frozenset(slots),
        ruling=Ruling(ruling),
    )


def _request(request: str, kind: str, name: str, stop: bool, state: str, checkpoint: int, detail: str) -> Request:
    return Request(
        id=RequestId(request),
        kind=CheckpointKind(kind),
        name=name,
        stop=stop,
        state=RequestState(state),
        checkpoint=CheckpointId(checkpoint),
        detail=detail,
    )


def _claim(store_id: str, generation: int, completed: int) -> Claim:
    return Claim(store_id=store_id, generation=Generation(generation), completed=CheckpointId(completed))


def _loss(checkpoint: int, participant: str, slots: list[int]) -> Loss:
    return Loss(checkpoint=CheckpointId(checkpoint), participant=ParticipantName(participant), slots=frozenset(slots))


def document_to_text(document: Document) -> str:
    return _text({"kind": document.kind, "version": document.version, "body": encoded.decoded(document).body})


def document_from_text(text: str) -> Document:
    raw = json.loads(text)
    return Document(kind=raw["kind"], version=raw["version"], body=raw["body"])


def snapshots_to_text(snapshots: Mapping[ParticipantName, Snapshot]) -> str:
    return _text({name: _snapshot(snapshot) for name, snapshot in snapshots.items()})


def snapshots_from_text(text: str) -> dict[ParticipantName, Snapshot]:
    return {ParticipantName(name): _read_snapshot(raw) for name, raw in json.loads(text).items()}


def state_from_text(text: str, participant: ParticipantName) -> Document | None:
    """The state in one of the snapshots, without a look at the others; None if there is none."""
    raw = json.loads(text).get(participant, {})
    return _kept(*raw["state"]) if "state" in raw else None


def _snapshot(snapshot: Snapshot) -> dict[str, Any]:
    """Bodies are texts inside of the text, so that neither writing nor reading looks into them."""
    positions = snapshot.positions
    shared, bodies = encoded.split([committable.document.body for committable in snapshot.committables])
    return {
        "positions": _kept_text(positions) if positions else None,
        "shared": shared,
        "committables": [
            [c.slot, c.document.kind, c.document.version, body]
            for c, body in zip(snapshot.committables, bodies, strict=True)
        ],
        "records": snapshot.records,
        "bytes": snapshot.bytes,
        "unchanged": snapshot.unchanged,
        **({"state": _kept_text(snapshot.state)} if snapshot.state is not None else {}),
    }


def _read_snapshot(raw: Mapping[str, Any]) -> Snapshot:
    if not isinstance(raw["shared"], str):
        raw = _with_texts(raw)
    shared, positions = raw["shared"], raw["positions"]
    return Snapshot(
        positions=_kept(*positions) if positions is not None else None,
        committables=tuple(
            Committable(slot=slot, document=_kept(kind, version, body, shared))
            for slot, kind, version, body in raw["committables"]
        ),
        records=raw["records"],
        bytes=raw["bytes"],
        unchanged=raw["unchanged"],
        state=_kept(*raw["state"]) if "state" in raw else None,
    )


def _kept_text(document: Document) -> list[Any]:
    return [document.kind, document.version, encoded.body_to_text(document.body)]


def _with_texts(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """The snapshot in today's form, from that of schema version 7: its bodies were not texts. Checks what is shared."""

    def texts(document: Mapping[str, Any], shared: Mapping[str, Any]) -> list[Any]:
        sharing.merged(shared, document["body"])
        return [document["kind"], document["version"], _text(document["body"])]

    return {
        **raw,
        "positions": texts(raw["positions"], {}) if raw["positions"] is not None else None,
        "shared": _text(raw["shared"]) if raw["shared"] else "",
        "committables": [[slot, *texts(document, raw["shared"])] for slot, document in raw["committables"]],
    }


def _kept(kind: str, version: int, body: str, shared: str = "") -> Document:
    return Document(kind=sys.intern(kind), version=version, body=EncodedBody(body, shared))


def _text(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
