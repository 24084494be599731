"""Create a librdkafka client, and the calls that its users share."""

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

from onceward.connections.rdkafka.library import DELIVERED, ERRED, LOGGED, THROTTLED, lib

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
"""Buffer size for the library's messages."""
_LEVELS = (*[logging.CRITICAL] * 3, logging.ERROR, logging.WARNING, logging.INFO, logging.INFO, logging.DEBUG)
"""Log levels for syslog's levels 0 to 7."""
_REBOOTSTRAP_S = 1.0


class Callbacks(NamedTuple):
    """Callbacks of a client, which run inside its user's calls. They must live as long as the client, and must not
    reference its Python object, which must be freed with its last reference."""

    log: Any
    error: Any
    delivered: Any = None
    throttled: Any = None

    @classmethod
    def of(
        cls,
        logger: logging.Logger,
        delivered: Callable[[int, int, int], None] | None = None,
        throttled: Callable[[float], None] | None = None,
    ) -> "Callbacks":
        """``delivered``: for a producer, as dr_msg_cb. ``throttled``: gets the seconds for which a broker holds back
        the client's next request, because of a quota."""
        return cls(
            LOGGED(_logging(logger)),
            ERRED(_ignored),
            None if delivered is None else DELIVERED(delivered),
            None if throttled is None else THROTTLED(lambda *said: throttled(said[3] / 1000)),
        )


def new_client(kind: int, config: Mapping[str, Any], callbacks: Callbacks) -> int:
    """Return the address of a new client. ``config``: librdkafka's properties. Raises KafkaException for a bad one."""
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
        if callbacks.throttled is not None:
            lib.conf_set_throttle_cb(conf, callbacks.throttled)
        client = lib.new(kind, conf, text, TEXT_BYTES)
        if not client:
            raise KafkaException(KafkaError(lib.last_error(), text.value.decode(errors="replace")))
    except BaseException:
        lib.conf_destroy(conf)
        raise
    lib.set_log_queue(client, None)  # deliver the log within the user's calls, in the user's thread
    return int(client)


class Rebootstrap:
    """Call this while a client makes no progress, as often as needed.

    While all brokers are fenced, the answering ones name no broker, and the client drops all that it knows. With
    ``metadata.recovery.strategy=none`` it then never asks any broker again (seen with 2.16.0). This gives it its
    bootstrap servers back; servers that it still has are not added twice.
    """

    def __init__(self, client: int, config: Mapping[str, Any]) -> None:
        self._client, self._servers = client, str(config.get("bootstrap.servers", "")).encode()
        self._next = 0.0

    def __call__(self) -> None:
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _REBOOTSTRAP_S
            lib.brokers_add(self._client, self._servers)


def released(owner: object, release: Callable[..., None], *what: object) -> "weakref.finalize[..., object]":
    """Call ``release(*what)`` when ``owner`` is freed, or when the result is called, but only in this process: a forked
    child has none of a client's threads and would wait for them forever. Not called at the interpreter's exit."""
    process = os.getpid()

    def in_its_process() -> None:
        if os.getpid() == process:
            release(*what)

    finalizer = weakref.finalize(owner, in_its_process)
    finalizer.atexit = False
    return finalizer


@contextmanager
def topic_partitions(positions: Sequence[TopicPartition]) -> Iterator[int]:
    """Yield the address of the library's list of ``positions``."""
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
    """Raise KafkaException for a code other than 0."""
    if code:
        raise KafkaException(KafkaError(code))


def ms(seconds: float) -> int:
    return math.ceil(seconds * 1000)


def _ignored(*_: object) -> None:
    """Ignore an event: fatal errors are polled for, records are reported, and the log has the rest."""


def _logging(logger: logging.Logger) -> Callable[[int, int, bytes, bytes], None]:
    def log(client: int, level: int, facility: bytes, line: bytes) -> None:
        name = lib.name(client) or b""
        text = (part.decode(errors="replace") for part in (facility, name, line))
        logger.log(_LEVELS[min(level, len(_LEVELS) - 1)], "%s [%s] %s", *text)

    return log
