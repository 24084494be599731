"""Documents and committables that belong to no real source or sink."""

from typing import Any

from onceward.coordinator.protocol.values import Committable, Document

__all__ = ["committable", "document"]


def document(**body: Any) -> Document:
    return Document(kind="test", version=1, body=body)


def committable(slot: int, **body: Any) -> Committable:
    return Committable(slot=slot, document=document(**body))
