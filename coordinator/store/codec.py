"""Protocol values as JSON text in the store. Reading raises what ``json`` and the values raise."""

import json
from collections.abc import Mapping
from typing import Any

from coordinator.protocol.settings import CheckpointSettings
from coordinator.protocol.values import (
    Committable,
    Document,
    Participant,
    ParticipantName,
    Role,
    Snapshot,
)

__all__ = [
    "participants_from_text",
    "participants_to_text",
    "settings_from_text",
    "settings_to_text",
    "snapshots_from_text",
    "snapshots_to_text",
]


def participants_to_text(participants: tuple[Participant, ...]) -> str:
    return _text([{"name": p.name, "role": p.role.value, "kind": p.kind} for p in participants])


def participants_from_text(text: str) -> tuple[Participant, ...]:
    return tuple(
        Participant(name=ParticipantName(raw["name"]), role=Role(raw["role"]), kind=raw["kind"])
        for raw in json.loads(text)
    )


def settings_to_text(settings: CheckpointSettings) -> str:
    return _text(settings.to_json())


def settings_from_text(text: str) -> CheckpointSettings:
    return CheckpointSettings.from_json(json.loads(text))


def snapshots_to_text(snapshots: Mapping[ParticipantName, Snapshot]) -> str:
    return _text({name: _snapshot(snapshot) for name, snapshot in snapshots.items()})


def snapshots_from_text(text: str) -> dict[ParticipantName, Snapshot]:
    return {ParticipantName(name): _read_snapshot(raw) for name, raw in json.loads(text).items()}


def _snapshot(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "positions": _document(snapshot.positions) if snapshot.positions is not None else None,
        "committables": [[c.slot, _document(c.document)] for c in snapshot.committables],
        "records": snapshot.records,
        "bytes": snapshot.bytes,
        "unchanged": snapshot.unchanged,
    }


def _read_snapshot(raw: Mapping[str, Any]) -> Snapshot:
    return Snapshot(
        positions=_read_document(raw["positions"]) if raw["positions"] is not None else None,
        committables=tuple(
            Committable(slot=slot, document=_read_document(document)) for slot, document in raw["committables"]
        ),
        records=raw["records"],
        bytes=raw["bytes"],
        unchanged=raw["unchanged"],
    )


def _document(document: Document) -> dict[str, Any]:
    return {"kind": document.kind, "version": document.version, "body": document.body}


def _read_document(raw: Mapping[str, Any]) -> Document:
    return Document(kind=raw["kind"], version=raw["version"], body=raw["body"])


def _text(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
