"""The error of the local toxiproxy. It affects no user data, only what a test created."""

from onceward.coordinator.errors import ExitCode, OncewardError

__all__ = ["ToxiproxyError"]


class ToxiproxyError(OncewardError):
    """The server cannot be built, started or reached, or did not carry out a request."""

    exit_code = ExitCode.PREFLIGHT
