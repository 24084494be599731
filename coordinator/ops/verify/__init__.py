"""Check that every input record took effect exactly once: a pure judge of histories, and ``onceward verify``."""

from onceward.coordinator.ops.verify.history import (
    Content,
    Fed,
    History,
    Lane,
    Part,
    PartitionEnd,
    Told,
    Visible,
    digest,
)
from onceward.coordinator.ops.verify.judge import AT_REST, EVERYTHING, judge
from onceward.coordinator.ops.verify.verdict import Grade, Property, Ruling, Verdict

__all__ = [
    "AT_REST",
    "EVERYTHING",
    "Content",
    "Fed",
    "Grade",
    "History",
    "Lane",
    "Part",
    "PartitionEnd",
    "Property",
    "Ruling",
    "Told",
    "Verdict",
    "Visible",
    "digest",
    "judge",
]
