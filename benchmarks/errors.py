"""What ends a benchmark, or one of its systems, for a reason that a person can act on."""

from onceward.coordinator.errors import OncewardError

__all__ = ["BenchmarkError", "NotOfferedError", "SetUpError"]


class BenchmarkError(OncewardError):
    """A run gave no figure: the system ended, stood still or wrote something else than it should. Other runs go on."""


class SetUpError(OncewardError):
    """What a system needs cannot be had on this machine. It is part of the result, with this reason."""


class NotOfferedError(OncewardError):
    """The system does not do this workload. It is part of the result, with this reason."""
