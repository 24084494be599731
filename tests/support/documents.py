"""Documents and committables that belong to no real source or sink."""

from typing import Any

from onceward.protocol.values import Author, Committable, Document, JobName, ParticipantName

__all__ = ["author", "committable", "document"]


def author(job: str = "orders", sink: str = "sink", *, first: int = 1, last: int = 9) -> Author:
    """The author of what a sink of ``job`` has pre-committed in these generations."""
    return Author(job=JobName(job), participant=ParticipantName(sink), generations=range(first, last + 1))


def document(**body: Any) -> Document:
    return Document(kind="test", version=1, body=body)


def committable(slot: int, **body: Any) -> Committable:
    return Committable(slot=slot, document=document(**body))
