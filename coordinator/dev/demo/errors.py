"""The error of the demo. It never concerns a user's data: the demo works on copies of a public data set."""

from onceward.coordinator.errors import ExitCode, OncewardError

__all__ = ["DemoError"]


class DemoError(OncewardError):
    """The demo cannot be set up or cannot go on; the message names the cause and the cure."""

    exit_code = ExitCode.PREFLIGHT
