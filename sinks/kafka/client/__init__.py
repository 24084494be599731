"""Clients that write: librdkafka's producer for columns of records, and one of our own in `native`.

interface.py    what both do
choice.py       which one writes
producer.py     ArrowProducer: a producer of librdkafka and its transactions (its binding is in connections/rdkafka)
messages.py     Arrow columns as the structures that the library reads
partitioner.py  the partition of a key
pending.py      a blocking call in a thread of its own
"""

from onceward.sinks.kafka.client.choice import new_producer
from onceward.sinks.kafka.client.interface import GroupOffset, Pending, Producer, UnfitRecordError
from onceward.sinks.kafka.client.producer import ArrowProducer

__all__ = ["ArrowProducer", "GroupOffset", "Pending", "Producer", "UnfitRecordError", "new_producer"]
