"""Feeds the flights into Kafka at an even rate, in a separate process: an ordinary producer, independent of Onceward.

    python -m onceward.dev.demo.feeder --brokers HOST:PORT --topic flights --seconds 90 [--limit N]

Exit code 0 only if the broker confirmed every message. Idempotent, so that the input has no duplicates and keeps its
order; partitioned as in Java.
"""

import argparse
import math
import sys
import time

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from onceward.dev.demo.flights import TOTAL, messages

__all__ = ["feed"]

_TICK_S = 0.1
_IN_FLIGHT = 50_000
"""Half the capacity of librdkafka's queue."""
_FLUSH_S = 60.0


def feed(brokers: str, topic: str, *, seconds: float, limit: int | None = None) -> int:
    """Send the first ``limit`` messages (default: all) over about ``seconds``; return how many the broker confirmed.

    Raises KafkaException if a message was refused or is unconfirmed a minute after the last one was sent.
    """
    total = TOTAL if limit is None else min(limit, TOTAL)
    confirmed = 0
    errors: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        nonlocal confirmed
        if error is None:
            confirmed += 1
        else:
            errors.append(error)

    producer = Producer(
        {
            "bootstrap.servers": brokers,
            "enable.idempotence": True,
            "partitioner": "murmur2_random",
            "linger.ms": 20,
            "on_delivery": delivered,
        }
    )
    start = time.monotonic()
    sent = 0
    source = messages(total)
    while sent < total and not errors:
        elapsed = time.monotonic() - start
        due = total if elapsed >= seconds else math.ceil(total * elapsed / seconds)
        for message in source:
            while len(producer) >= _IN_FLIGHT and not errors:
                producer.poll(_TICK_S)
            producer.produce(topic, key=message.key, value=message.value)
            sent += 1
            if sent >= due:
                break
        producer.poll(_TICK_S)  # serves callbacks for at most one tick, so the rate stays even
        pause = _TICK_S - (time.monotonic() - start - elapsed)
        if pause > 0:
            time.sleep(pause)
    producer.flush(_FLUSH_S)
    if errors:
        raise KafkaException(errors[0])
    if confirmed != total:
        raise KafkaException(KafkaError(KafkaError._MSG_TIMED_OUT, f"{total - confirmed} messages are not confirmed"))
    return confirmed


def main() -> int:
    """The feeder's process."""
    parser = argparse.ArgumentParser(description="feed the flights into Kafka at an even rate")
    parser.add_argument("--brokers", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--limit", type=int)
    arguments = parser.parse_args()
    count = feed(arguments.brokers, arguments.topic, seconds=arguments.seconds, limit=arguments.limit)
    print(f"{count} messages confirmed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
