"""librdkafka's producer for columns of records: what confluent-kafka does per record, done per batch.

The library binding and what all its clients share are in connections/rdkafka.

producer.py     ArrowProducer: a producer and its transactions
messages.py     Arrow columns as the structures that the library reads
partitioner.py  the partition of a key
"""

from onceward.sinks.kafka.client.messages import UnfitRecordError
from onceward.sinks.kafka.client.producer import ArrowProducer

__all__ = ["ArrowProducer", "UnfitRecordError"]
