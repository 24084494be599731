"""What goes wrong on a socket, as confluent-kafka's errors: callers need not know which client they have."""

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException

from onceward.connections.sockets.encoding import GarbledError
from onceward.connections.sockets.requests import UnspokenError

__all__ = ["as_kafka_errors"]


@contextmanager
def as_kafka_errors() -> Iterator[None]:
    """Raise KafkaException for what a broker says that this code does not understand."""
    try:
        yield
    except GarbledError as error:
        raise KafkaException(KafkaError(KafkaError._BAD_MSG, str(error))) from None
    except UnspokenError as error:
        raise KafkaException(KafkaError(KafkaError._UNSUPPORTED_FEATURE, str(error))) from None
