"""A model of Kafka 4.3 for the simulation, as far as transactions, receipts and claims need it.

Deterministic: no clock, no randomness, no threads. The sender of a request says when it arrives (``now``, virtual
seconds). A contract test (``tests/integration/test_kafka_model_contract.py``) runs the same scripts here and on a real
broker.

    Cluster(Settings(brokers=(1, 2, 3), transaction_version=2, marker_delay=..., timeout_scan_s=...))
        .handle(node, request, now) -> answer | NoAnswer      one request arrives at one broker
        .advance(now), .next_event                            markers, completions and time-outs that are due
        .create_topic(name, partitions), .delete_topic(name)
        .log((topic, partition)) -> PartitionLog              .read(start, committed=True) -> (entries, next offset),
                                                              .high_watermark, .last_stable_offset
        .on_marker(f), .on_append(f)                          f is called when something becomes visible, or is written
        .entry(id), .entries()                                what the coordinators keep; read only
        .fail(node, now), .restart(node, now)                 a broker stops, and returns; nothing is lost
        .move_coordinator(kind, key, node, now, loading_s=, stale_s=, believers=)

    Transport                  between processes and brokers, given by a world: now(), sleep(s), send([Call, ...])
    Call                       .node (None: any, the transport chooses), .request, .apply(now, node) -> answer.
                               Applied never = lost, twice = delayed duplicate; an answer may be kept from the sender.
    DirectTransport()          arrives at once, for tests: .cut(call), .deaf(call) lose requests and answers
    SimControl(cluster, transport)                            a ControlPlane: the product's, except for the sockets
    SimProducer(config, cluster=, transport=, topics=, failed=, logger=)   a producer of the sink
"""

from tests.support.kafka_model.cluster import Cluster
from tests.support.kafka_model.control import SimControl
from tests.support.kafka_model.log import Entry, Fate, PartitionLog, Span
from tests.support.kafka_model.producer import SimProducer
from tests.support.kafka_model.settings import (
    OFFSETS_TOPIC,
    AddOffsets,
    AddPartitions,
    CommitOffsets,
    Offset,
    Partition,
    Produce,
    Record,
    Settings,
)
from tests.support.kafka_model.transactions import LAST_EPOCH, State
from tests.support.kafka_model.transport import Call, DirectTransport, Transport

__all__ = [
    "LAST_EPOCH",
    "OFFSETS_TOPIC",
    "AddOffsets",
    "AddPartitions",
    "Call",
    "Cluster",
    "CommitOffsets",
    "DirectTransport",
    "Entry",
    "Fate",
    "Offset",
    "Partition",
    "PartitionLog",
    "Produce",
    "Record",
    "Settings",
    "SimControl",
    "SimProducer",
    "Span",
    "State",
    "Transport",
]
