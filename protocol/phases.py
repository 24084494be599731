"""The phases of a checkpoint that only its driver can measure. For listings: the protocol decides nothing by them."""

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import Self, TypeAlias

__all__ = ["Phase", "Phases"]


class Phase(StrEnum):
    """In the order in which they happen, all between the trigger and the last acknowledgement. The phases from QUEUE to
    FLUSH are those of the slot that voted last: tasks run in parallel, and all others waited for it."""

    CLEANUP = "cleanup", 11, "the driver ended an earlier checkpoint, or wrote lost slots again"
    IDLE = "idle", 0, "waiting for new input"
    PLAN = "plan", 1, "planning what to read"
    SCHEDULE = "schedule", 2, "until Spark began the first task"
    QUEUE = "queue", 3, "until the slowest slot's task began, for lack of a free core"
    READ = "read", 4, "the slowest slot got records from the source"
    TRANSFORM = "transform", 5, "the slowest slot transformed them"
    READ_TRANSFORM = "read+transform", 6, "the slowest slot got the result of Spark's plan, which reads and transforms"
    PRODUCE = "produce", 7, "the slowest slot passed records to the sink"
    FLUSH = "flush", 8, "the slowest slot waited until the sink had everything"
    VOTE = "vote", 9, "from the slowest slot's vote until the driver had all votes"
    PROVE = "prove", 10, "the driver checked that everything that was read is pre-committed"

    place: int
    """In the text that the store keeps: a new phase takes the next number, wherever it happens."""
    meaning: str
    """For people."""

    def __new__(cls, name: str, place: int, meaning: str) -> Self:
        phase = str.__new__(cls, name)
        phase._value_, phase.place, phase.meaning = name, place, meaning
        return phase


Phases: TypeAlias = Mapping[Phase, timedelta]
"""A phase that was not measured, or not reached, is missing; it is not 0."""
