"""The error of the local Kafka. It affects no user data, only what a test or the demo created."""

from onceward.coordinator.errors import ExitCode, OncewardError

__all__ = ["LocalKafkaError"]


class LocalKafkaError(OncewardError):
    """The local Kafka cannot be fetched, started or reached; the message names the cause and the remedy."""

    exit_code = ExitCode.PREFLIGHT
