"""The phases of a checkpoint that only its driver can measure. For listings: the protocol decides nothing by them."""

from collections.abc import Mapping
from datetime import timedelta
from enum import StrEnum
from typing import TypeAlias

__all__ = ["Phase", "Phases"]


class Phase(StrEnum):
    """In the order in which they happen, all between the trigger and the last acknowledgement. The store keeps them by
    their place in this order: add new ones at the end."""

    IDLE = "idle"
    """Waiting for new input."""
    PLAN = "plan"
    """Planning what to read."""
    SCHEDULE = "schedule"
    """Until Spark began the first task."""
    QUEUE = "queue"
    """How much later the task of the slot that voted last began, for lack of a free core. The phases from here to
    FLUSH are those of this slot: tasks run in parallel, and all others waited for it."""
    READ = "read"
    """Its task got records from the source."""
    TRANSFORM = "transform"
    """Its task transformed them."""
    READ_TRANSFORM = "read+transform"
    """Instead of both, where Spark's own plan does both and its task only gets the result."""
    PRODUCE = "produce"
    """Its task passed records to the sink."""
    FLUSH = "flush"
    """Its task waited until the sink had everything."""
    VOTE = "vote"
    """From its vote until the driver had all votes."""
    PROVE = "prove"
    """The driver checked that everything that was read is pre-committed."""


Phases: TypeAlias = Mapping[Phase, timedelta]
"""A phase that was not measured, or not reached, is missing; it is not 0."""
