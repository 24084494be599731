"""The named invariants, and violations of them."""

from enum import StrEnum
from typing import NamedTuple

__all__ = ["Invariant", "Violation"]


class Invariant(StrEnum):
    """What must hold in every state. A counter-example starts with the text."""

    ONE_DECISION = "I5: one decision per checkpoint, durable before the first commit"
    NEVER_CHANGES = "a decision never changes"
    EVERYBODY = "I6: completed only with every participant's acknowledgement of the current generation"
    STALE = "I7: a stale generation's message changes nothing"
    RESTORED = "I10: restored positions are those of the last completed checkpoint"
    IN_ORDER = "n+1 is not completed before n is settled"
    SETTLED = "a completed checkpoint is settled once faults stop"
    TILES = "no record range is skipped or counted twice"
    REMEMBERED = "the coordinator goes on with exactly what it has stored"
    ALONE = "what a driver leaves behind is ended without another one"
    CONTRACT = "a driver that keeps the contract is never refused"


class Violation(NamedTuple):
    """The broken invariant, with one sentence about this world."""

    invariant: Invariant
    text: str
