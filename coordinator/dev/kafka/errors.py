"""The error of the local Kafka. It never concerns a user's data, only what a test or demo made."""

from onceward.coordinator.errors import ExitCode, OncewardError

__all__ = ["LocalKafkaError"]


class LocalKafkaError(OncewardError):
    """The local Kafka cannot be fetched, started or reached; the message names the cause and the cure."""

    exit_code = ExitCode.PREFLIGHT
