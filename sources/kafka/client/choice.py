"""Which client reads: librdkafka, or one of our own where it is asked for and can."""

import logging
import os
from collections.abc import Mapping
from typing import Any, Final

from onceward.connections.sockets.choice import missing, say_librdkafka
from onceward.connections.sockets.settings import unfollowed
from onceward.sources.kafka.client.consumer import ArrowConsumer
from onceward.sources.kafka.client.interface import Consumer

__all__ = ["READER_VARIABLE", "leave_to_librdkafka", "new_consumer"]

READER_VARIABLE: Final = "ONCEWARD_KAFKA_READER"
"""``auto``: the native client where it loads and follows every setting. ``native`` or ``librdkafka``, for tests: that
one, whatever else is true. Without it librdkafka reads: the suites of kills and network faults have not yet run on the
native client."""
_NATIVE, _LIBRDKAFKA, _AUTO = "native", "librdkafka", "auto"


def new_consumer(config: Mapping[str, Any], *, logger: logging.Logger) -> Consumer:
    """Return a consumer. ``config``: librdkafka's properties. Raises KafkaException if they are rejected, ImportError
    if the variable demands a client that is not installed."""
    if _chosen(config, logger) == _NATIVE:
        from onceward.sources.kafka.client.native.consumer import NativeConsumer

        return NativeConsumer(config, logger=logger)
    return ArrowConsumer(config, logger=logger)


def leave_to_librdkafka(why: str) -> None:
    """From now on, make consumers of librdkafka in this process."""
    _left.append(why)


_left: list[str] = []


def _chosen(config: Mapping[str, Any], logger: logging.Logger) -> str:
    asked = os.environ.get(READER_VARIABLE)
    if asked != _AUTO:
        return _NATIVE if asked == _NATIVE else _LIBRDKAFKA
    if (why := _left[0] if _left else missing()) is None:
        from onceward.sources.kafka.client.native.settings import FOLLOWED

        if not (keys := unfollowed(config, FOLLOWED)):
            return _NATIVE
        why = f"only librdkafka follows {', '.join(keys)}"
    say_librdkafka("read", why, logger)
    return _LIBRDKAFKA
