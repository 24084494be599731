"""The error of the local toxiproxy. It never concerns a user's data, only what a test made."""

from onceward.coordinator.errors import ExitCode, OncewardError

__all__ = ["ToxiproxyError"]


class ToxiproxyError(OncewardError):
    """The server cannot be built, started or reached, or did not do what it was told."""

    exit_code = ExitCode.PREFLIGHT
