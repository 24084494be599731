"""Errors that end a benchmark, or one of its systems, with a reason that a person can act on."""

from onceward.common.errors import OncewardError

__all__ = ["BenchmarkError", "NotOfferedError", "SetUpError"]


class BenchmarkError(OncewardError):
    """A run gave no figure: the system ended, stood still or wrote a wrong output. Other runs continue."""


class SetUpError(OncewardError):
    """A system's dependencies are unavailable on this machine. The result includes the reason."""


class NotOfferedError(OncewardError):
    """The system does not support this workload. The result includes the reason."""
