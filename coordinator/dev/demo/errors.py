"""The error of the demo. It affects no user data: the demo works on copies of a public data set."""

from onceward.coordinator.errors import ExitCode, OncewardError

__all__ = ["DemoError"]


class DemoError(OncewardError):
    """The demo cannot be set up or cannot continue; the message names the cause and the remedy."""

    exit_code = ExitCode.PREFLIGHT
