"""Check that every input record took effect exactly once: a pure judge of histories, and ``onceward verify``."""

from onceward.operate.verify.history import (
    CheckpointReport,
    Content,
    Fed,
    History,
    Lane,
    Part,
    PartitionEnd,
    Visible,
    digest,
)
from onceward.operate.verify.judge import AT_REST, EVERYTHING, judge
from onceward.operate.verify.verdict import Grade, Property, Result, Verification

__all__ = [
    "AT_REST",
    "EVERYTHING",
    "CheckpointReport",
    "Content",
    "Fed",
    "Grade",
    "History",
    "Lane",
    "Part",
    "PartitionEnd",
    "Property",
    "Result",
    "Verification",
    "Visible",
    "digest",
    "judge",
]
