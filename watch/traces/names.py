"""The names of spans and of their attributes. docs/reference/traces.md describes them."""

from collections.abc import Mapping
from enum import StrEnum
from typing import TypeAlias

__all__ = ["Attribute", "Attributes", "SpanName", "identity"]


class SpanName(StrEnum):
    """In the order in which they begin."""

    CHECKPOINT = "checkpoint"
    WAIT = "wait"
    PLAN = "plan"
    RUN = "run"
    SLOT = "slot"
    READ = "read"
    TRANSFORM = "transform"
    READ_TRANSFORM = "read+transform"
    PRODUCE = "produce"
    FLUSH = "flush"
    VOTE = "vote"
    PROVE = "prove"
    DECIDE = "decide"
    STORE_COMMIT = "store commit"
    ABORT = "abort"
    SETTLE = "settle"
    REPLAY = "replay"


class Attribute(StrEnum):
    """Ids and counts only, never text of a record or a peer."""

    JOB = "onceward.job"
    GENERATION = "onceward.generation"
    CHECKPOINT = "onceward.checkpoint"
    SLOT = "onceward.slot"
    SLOTS = "onceward.slots"
    RECORDS_READ = "onceward.records_read"
    RECORDS_WRITTEN = "onceward.records_written"
    BYTES_WRITTEN = "onceward.bytes_written"
    TRANSACTIONS = "onceward.transactions"
    AMENDMENT = "onceward.amendment"
    RESULT = "onceward.result"


Attributes: TypeAlias = Mapping[Attribute, str | int]


def identity(job: str, generation: int, checkpoint: int) -> dict[Attribute, str | int]:
    """What every span has."""
    return {Attribute.JOB: job, Attribute.GENERATION: generation, Attribute.CHECKPOINT: checkpoint}
