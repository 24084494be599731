"""Kafka's consumers for records that become columns, without a Python object per record.

interface.py  what a consumer offers, whichever it is
choice.py     which one reads
native        one of our own
consumer.py   ArrowConsumer: a consumer of librdkafka
queues.py     a queue for each of its partitions
fetched.py    the result of one of its calls: messages in the library's memory, and Arrow columns of them

The binding of librdkafka and what all its clients share are in connections/rdkafka, the connections of our own in
connections/sockets.
"""

from onceward.sources.kafka.client.choice import new_consumer
from onceward.sources.kafka.client.consumer import ArrowConsumer, slow_release
from onceward.sources.kafka.client.interface import (
    Consumer,
    Event,
    Fetched,
    Headers,
    Queues,
    Records,
    Throttling,
)

__all__ = [
    "ArrowConsumer",
    "Consumer",
    "Event",
    "Fetched",
    "Headers",
    "Queues",
    "Records",
    "Throttling",
    "new_consumer",
    "slow_release",
]
