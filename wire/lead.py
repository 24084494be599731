"""What coordinators that share a store say beside the messages of their services."""

__all__ = ["LEADER", "LIVE", "READY", "TERM"]

LIVE = "onceward.live"
"""A service of the health check: serves as long as the process does."""
READY = "onceward.ready"
"""A service of the health check: serves while the process leads, or could lead at once."""

TERM = "onceward-term"
"""The number of the coordinator's term: trailing metadata of a call, initial metadata of a stream."""
LEADER = "onceward-leader"
"""Trailing metadata of a refusal: the address of the coordinator that leads."""
