"""Recent values as one small line. Pure."""

from collections.abc import Sequence

__all__ = ["HEIGHT", "WIDTH", "points"]

WIDTH, HEIGHT = 60, 16
_EDGE = 1
"""Room for the stroke."""


def points(values: Sequence[float]) -> str:
    """The points of a polyline, oldest first, from 0 to the highest value; empty for fewer than two values."""
    if len(values) < 2:
        return ""
    highest, step = max(*values, 0.0), (WIDTH - 2 * _EDGE) / (len(values) - 1)
    scale = (HEIGHT - 2 * _EDGE) / highest if highest else 0.0
    return " ".join(
        f"{_EDGE + number * step:.1f},{HEIGHT - _EDGE - value * scale:.1f}" for number, value in enumerate(values)
    )
