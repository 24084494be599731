"""Whether lost slots can be written to the place where they were written before."""

from collections.abc import Iterable, Mapping

from onceward.connections.codes import ErrorCode
from onceward.connections.topics import TopicFacts
from onceward.connectors.interfaces import ReplayRefusedError
from onceward.sinks.kafka.control.committables import KafkaCommittable

__all__ = ["refuse_changed"]


def refuse_changed(lost: Iterable[KafkaCommittable], *, cluster_id: str, topics: Mapping[str, TopicFacts]) -> None:
    """Raise ReplayRefusedError if the cluster or a topic of a lost slot is not the same any more.

    ``topics``: the sink's topics as the cluster reports them now. A recreated topic has lost more than these slots, and
    a different number of partitions would send a key elsewhere than the rest of its checkpoint.
    """
    for handle in lost:
        if handle.cluster_id != cluster_id:
            raise ReplayRefusedError(
                f"slot {handle.slot} was written to cluster {handle.cluster_id}, the sink leads to {cluster_id} now"
            )
        for name, written in handle.topics.items():
            now = topics.get(name)
            if now is None or now.code != ErrorCode.NONE:
                raise ReplayRefusedError(f"slot {handle.slot} was written to topic {name}, which cannot be found now")
            if not written.id or written.id != now.id:
                raise ReplayRefusedError(
                    f"slot {handle.slot} was written to topic {name} with id {written.id or 'unknown'}, now its id is "
                    f"{now.id or 'unknown'}: it was deleted and recreated"
                )
            if written.count != now.partitions:
                raise ReplayRefusedError(
                    f"slot {handle.slot} was written when topic {name} had {written.count} partitions, now it has "
                    f"{now.partitions}: keys would go to other partitions than in the rest of the checkpoint"
                )
