"""Errors of the control plane of a Kafka cluster. Executors import this module, so it imports no client."""

from onceward.common.errors import OncewardError

__all__ = ["ControlPlaneClosedError", "ControlPlaneError"]


class ControlPlaneError(OncewardError):
    """The cluster gave no usable answer. The outcome of the request is unknown; retrying is safe."""


class ControlPlaneClosedError(ControlPlaneError):
    """The control plane was closed: retrying will not help."""
