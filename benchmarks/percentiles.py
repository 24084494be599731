"""Percentiles that were measured, not made between two values."""

from collections.abc import Sequence

__all__ = ["percentile"]


def percentile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` of all are not above; NaN for none."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
