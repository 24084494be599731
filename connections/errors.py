"""What can go wrong between us and a Kafka cluster. Executors import this: no client."""

from onceward.coordinator.errors import OncewardError

__all__ = ["ControlPlaneClosedError", "ControlPlaneError"]


class ControlPlaneError(OncewardError):
    """The cluster gave no usable answer. Nothing is known about what was asked; asking again is safe."""


class ControlPlaneClosedError(ControlPlaneError):
    """It was closed: asking again is useless."""
