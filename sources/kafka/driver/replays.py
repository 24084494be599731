"""Whether ranges that were already read can be read again completely."""

from collections.abc import Sequence

from onceward.connectors.interfaces import ReplayRefusedError
from onceward.protocol.values import JsonObject
from onceward.sources.kafka.control.leaders import Leaders
from onceward.sources.kafka.control.metadata import BrokerView, insist
from onceward.sources.kafka.driver.checks import confirm_topics
from onceward.sources.kafka.positions import KafkaPositions, Partition

__all__ = ["refuse_incomplete"]

_POLICY = "cleanup.policy"


def refuse_incomplete(
    view: BrokerView,
    leaders: Leaders,
    cluster_id: str,
    positions: KafkaPositions,
    splits: Sequence[JsonObject],
) -> None:
    """Raise ReplayRefusedError unless the topics of ``positions``, which ``splits`` came from, still hold every record.

    Retention must not have reached the ranges, and compaction must be off: it removes records from the middle. The logs
    must be the ones that were read. Raises CheckpointFailedError if the brokers do not answer.
    """
    if positions.cluster_id != cluster_id:
        raise ReplayRefusedError(
            f"the records were read from cluster {positions.cluster_id}, the source leads to {cluster_id} now"
        )
    # A partition may have several ranges (min_partitions).
    ranges = [(Partition(str(s["topic"]), int(s["partition"])), int(s["start"]), int(s["end"])) for s in splits]
    partitions = {partition for partition, _, _ in ranges}
    names = sorted({partition.topic for partition in partitions})
    found = confirm_topics(view.topics, names)
    for partition in sorted(partitions):
        known, now = positions.topics.get(partition.topic), found.get(partition.topic)
        if now is None or partition.number not in now.partitions:
            raise ReplayRefusedError(f"{partition}, which the records came from, does not exist any more")
        if known is None or known.id != now.id:
            was = "unknown" if known is None else known.id
            raise ReplayRefusedError(f"topic {partition.topic} was recreated: its id was {was} and is {now.id}")
    for name, settings in view.topic_settings(names, [_POLICY]).items():
        policy = None if settings is None else settings.get(_POLICY)
        if policy != "delete":
            said = f"{_POLICY}={policy}" if policy is not None else f"{_POLICY} may not be read: grant DescribeConfigs"
            raise ReplayRefusedError(f"topic {name} may have lost records by compaction ({said})")
    starts, ends = insist(view.log_starts, partitions), insist(view.high_watermarks, partitions)
    for partition, start, end in sorted(ranges):
        if not starts[partition] <= start <= end <= ends[partition]:
            raise ReplayRefusedError(
                f"{partition} does not hold the offsets [{start}, {end}) any more, its log is "
                f"[{starts[partition]}, {ends[partition]})"
            )
    cursors = {partition: cursor for partition, cursor in positions if partition in partitions}
    for differs in leaders.differences(cursors):
        ends_of = [end for partition, _, end in ranges if partition == differs.partition]
        if not differs.exact or max(ends_of) > differs.offset:
            raise ReplayRefusedError(str(differs))
