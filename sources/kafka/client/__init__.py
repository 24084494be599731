"""librdkafka's consumer for records that become columns, without a Python object per record.

consumer.py  ArrowConsumer: a consumer of ranges
queues.py    a queue for each of its partitions
fetched.py   the result of one consumer call: messages in the library's memory, and Arrow columns of them

The library binding and what all its clients share are in connections/rdkafka.
"""

from onceward.sources.kafka.client.consumer import ArrowConsumer, slow_release
from onceward.sources.kafka.client.fetched import Event, Fetched, Headers, Records
from onceward.sources.kafka.client.queues import PartitionQueues

__all__ = ["ArrowConsumer", "Event", "Fetched", "Headers", "PartitionQueues", "Records", "slow_release"]
