"""Percentiles that are measured values, not interpolated ones."""

from collections.abc import Sequence

__all__ = ["percentile"]


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that at least ``share`` of all values do not exceed; NaN for none."""
    if not values:
        return float("nan")
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
