"""librdkafka's producer for records that are columns: what confluent-kafka does record by record, batch by batch.

The library itself and what its clients have in common are in connections/rdkafka.

producer.py     ArrowProducer: a producer and its transactions
messages.py     Arrow columns as the structures that the library reads
partitioner.py  which partition a key belongs to
"""

from onceward.sinks.kafka.client.messages import UnfitRecordError
from onceward.sinks.kafka.client.producer import ArrowProducer

__all__ = ["ArrowProducer", "UnfitRecordError"]
