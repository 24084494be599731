"""Errors as the executors' client raises and reports them."""

from confluent_kafka import KafkaError, KafkaException

__all__ = ["abortable", "failure", "fatal", "wrong_state"]


def failure(code: int, why: str) -> KafkaException:
    """The call failed and may be retried."""
    return KafkaException(KafkaError(code, why, retriable=True))


def wrong_state(why: str) -> KafkaException:
    """The call does not fit the calls before it."""
    return KafkaException(KafkaError(KafkaError._STATE, why))


def abortable(code: int, why: str) -> KafkaError:
    """The transaction can only be aborted."""
    return KafkaError(code, why, txn_requires_abort=True)


def fatal(code: int, why: str) -> KafkaError:
    """The producer can only be discarded."""
    return KafkaError(code, why, fatal=True)
