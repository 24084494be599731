"""The errors of the demo and the local servers. They affect no user data, only what a test or the demo created."""

from onceward.common.errors import ExitCode, OncewardError

__all__ = ["DemoError", "LocalKafkaError", "LocalPostgresError", "LocalServerError", "ToxiproxyError"]


class DemoError(OncewardError):
    """The demo cannot be set up or cannot continue; the message names the cause and the remedy."""

    exit_code = ExitCode.PREFLIGHT


class LocalServerError(OncewardError):
    """A local server cannot be fetched, started or reached; the message names the cause and the remedy."""

    exit_code = ExitCode.PREFLIGHT


class LocalKafkaError(LocalServerError):
    """The local Kafka cannot be started or reached."""


class LocalPostgresError(LocalServerError):
    """The local PostgreSQL cannot be started or reached."""


class ToxiproxyError(OncewardError):
    """The server cannot be built, started or reached, or did not carry out a request."""

    exit_code = ExitCode.PREFLIGHT
