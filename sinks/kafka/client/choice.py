"""Which client writes: librdkafka, or one of our own where it is asked for and can."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

from onceward.connections.sockets.choice import missing, say_librdkafka
from onceward.connections.sockets.settings import unfollowed
from onceward.sinks.kafka.client.interface import Producer
from onceward.sinks.kafka.client.producer import ArrowProducer
from onceward.sinks.kafka.timeouts import NEVER_MS

__all__ = ["WRITER_VARIABLE", "new_producer"]

WRITER_VARIABLE: Final = "ONCEWARD_KAFKA_WRITER"
"""``auto``: the native client where it loads and follows every setting. ``native`` or ``librdkafka``, for tests: that
one, whatever else is true. Without it librdkafka writes, except transactions that never expire: not all suites have run
on the native client."""


def new_producer(
    config: Mapping[str, Any],
    *,
    topics: Sequence[str],
    failed: Callable[[KafkaError], object],
    logger: logging.Logger,
) -> Producer:
    """Return a producer. ``config``: librdkafka's properties. ``topics``: every topic that it will write to. ``failed``
    is called for each record that could not be delivered, during `poll` and `flush`. Raises KafkaException if the
    configuration is rejected, ImportError if the variable demands a client that is not installed."""
    asked, never = os.environ.get(WRITER_VARIABLE), str(config.get("transaction.timeout.ms")) == str(NEVER_MS)
    why: str | None = f"{WRITER_VARIABLE} says so"
    if asked == "native" or ((asked == "auto" or (never and asked is None)) and (why := _why_not(config)) is None):
        from onceward.sinks.kafka.client.native.producer import NativeProducer

        return NativeProducer(config, topics=topics, failed=failed, logger=logger)
    if never:
        raise KafkaException(
            KafkaError(KafkaError._UNSUPPORTED_FEATURE, f"transactions that never expire cannot be written here: {why}")
        )
    if asked == "auto" and why is not None:
        say_librdkafka("written", why, logger)
    return ArrowProducer(config, topics=topics, failed=failed, logger=logger)


def _why_not(config: Mapping[str, Any]) -> str | None:
    """Return why the native client cannot write."""
    if (why := missing()) is None:
        from onceward.sinks.kafka.client.native.settings import FOLLOWED, unwritable

        keys = unfollowed(config, FOLLOWED) or [setting for setting in [unwritable(config)] if setting]
        why = f"only librdkafka follows {', '.join(keys)}" if keys else None
    return why
