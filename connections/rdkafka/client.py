"""Making a client of librdkafka, and what calls of its functions have in common."""

import ctypes
import logging
import math
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from onceward.connections.rdkafka.library import DELIVERED, ERRED, LOGGED, lib

__all__ = [
    "CONSUMER",
    "PRODUCER",
    "TEXT_BYTES",
    "Callbacks",
    "Rebootstrap",
    "check",
    "ms",
    "new_client",
    "released",
    "topic_partitions",
]

PRODUCER = 0
"""RD_KAFKA_PRODUCER"""
CONSUMER = 1
"""RD_KAFKA_CONSUMER"""
TEXT_BYTES = 512
"""Room for what the library says."""
_LEVELS = (*[logging.CRITICAL] * 3, logging.ERROR, logging.WARNING, logging.INFO, logging.INFO, logging.DEBUG)
"""Of syslog's 0 to 7."""
_REBOOTSTRAP_S = 1.0


class Callbacks(NamedTuple):
    """What a client calls, within the calls of its user. Must live as long as it, and not know its Python object: that
    must go when its last reference goes."""

    log: Any
    error: Any
    delivered: Any = None

    @classmethod
    def of(cls, logger: logging.Logger, delivered: Callable[[int, int, int], None] | None = None) -> "Callbacks":
        """``delivered``: for a producer, as dr_msg_cb."""
        return cls(LOGGED(_logging(logger)), ERRED(_ignored), None if delivered is None else DELIVERED(delivered))


def new_client(kind: int, config: Mapping[str, Any], callbacks: Callbacks) -> int:
    """A client's address. ``config``: librdkafka's properties. Raises KafkaException when it is refused."""
    text = ctypes.create_string_buffer(TEXT_BYTES)
    conf = lib.conf_new()
    try:
        for key, value in {**config, "log.queue": True}.items():
            said = str(value).lower() if isinstance(value, bool) else str(value)
            if lib.conf_set(conf, key.encode(), said.encode(), text, TEXT_BYTES):
                raise KafkaException(KafkaError(KafkaError._INVALID_ARG, text.value.decode(errors="replace")))
        lib.conf_set_log_cb(conf, callbacks.log)
        lib.conf_set_error_cb(conf, callbacks.error)
        if callbacks.delivered is not None:
            lib.conf_set_dr_msg_cb(conf, callbacks.delivered)
        client = lib.new(kind, conf, text, TEXT_BYTES)
        if not client:
            raise KafkaException(KafkaError(lib.last_error(), text.value.decode(errors="replace")))
    except BaseException:
        lib.conf_destroy(conf)
        raise
    lib.set_log_queue(client, None)  # the log is handed over within the user's calls, in the user's thread
    return int(client)


class Rebootstrap:
    """Call this, as often as you like, while a client gets nowhere.

    While all brokers are fenced those that answer name no broker, and the client drops all that it knows. With
    ``metadata.recovery.strategy=none`` it asks nobody ever again (seen with 2.16.0). Here it gets its bootstrap servers
    back; those that it still has are not added twice."""

    def __init__(self, client: int, config: Mapping[str, Any]) -> None:
        self._client, self._servers = client, str(config.get("bootstrap.servers", "")).encode()
        self._next = 0.0

    def __call__(self) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _REBOOTSTRAP_S
            lib.brokers_add(self._client, self._servers)


def released(owner: object, release: Callable[..., None], *what: object) -> "weakref.finalize[..., object]":
    """``release(*what)`` when ``owner`` goes, or when this is called, and only in this process: a fork has none of a
    client's threads and would wait for them for ever. Not at the interpreter's exit."""
    process = os.getpid()

    def in_its_process() -> None:
        if os.getpid() == process:
            release(*what)

    finalizer = weakref.finalize(owner, in_its_process)
    finalizer.atexit = False
    return finalizer


@contextmanager
def topic_partitions(positions: Sequence[TopicPartition]) -> Iterator[int]:
    """``positions`` as the library's list, of which this is the address."""
    listed = lib.topic_partition_list_new(len(positions))
    try:
        for position in positions:
            added = lib.topic_partition_list_add(listed, position.topic.encode(), position.partition).contents
            added.offset = position.offset
            if position.metadata:
                text = position.metadata.encode()
                added.metadata = lib.mem_malloc(None, len(text))  # freed with the list
                added.metadata_size = len(text)
                ctypes.memmove(added.metadata, text, len(text))
        yield listed
    finally:
        lib.topic_partition_list_destroy(listed)


def check(code: int) -> None:
    """Raises KafkaException for a code that is not 0."""
    if code:
        raise KafkaException(KafkaError(code))


def ms(seconds: float) -> int:
    return math.ceil(seconds * 1000)


def _ignored(*_: object) -> None:
    """What must not be missed is asked for (fatal errors) or reported (records); the log has the rest."""


def _logging(logger: logging.Logger) -> Callable[[int, int, bytes, bytes], None]:
    def log(client: int, level: int, facility: bytes, line: bytes) -> None:
        name = lib.name(client) or b""
        text = (part.decode(errors="replace") for part in (facility, name, line))
        logger.log(_LEVELS[min(level, len(_LEVELS) - 1)], "%s [%s] %s", *text)

    return log
