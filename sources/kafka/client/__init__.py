"""librdkafka's consumer for records that become columns: no Python object for each of them.

consumer.py  ArrowConsumer: a consumer of ranges
fetched.py   what one of its calls gave: messages in the library's memory, and Arrow columns of them

The library itself and what its clients have in common are in connections/rdkafka.
"""

from onceward.sources.kafka.client.consumer import ArrowConsumer, slow_release
from onceward.sources.kafka.client.fetched import Event, Fetched, Headers, Records

__all__ = ["ArrowConsumer", "Event", "Fetched", "Headers", "Records", "slow_release"]
