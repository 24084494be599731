"""Whether lost slots can be rewritten exactly as they were, and from which input."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from onceward.coordinator.pipeline.interfaces import ReplayRefusedError
from onceward.coordinator.protocol.values import JsonObject

if TYPE_CHECKING:
    from onceward.sinks.kafka.control.brokers import TopicFacts
    from onceward.sinks.kafka.control.committables import KafkaCommittable

__all__ = ["alone", "lost_splits"]


def alone(inputs: Sequence[Sequence[JsonObject]]) -> frozenset[int]:
    """Return the slots made of a single split that no other slot shares: reading it again reproduces the slot."""
    if all(len(splits) != 1 for splits in inputs):
        return frozenset()  # a shuffle: counting would take slots x ranges
    users: dict[str, int] = {}
    for splits in inputs:
        for split in splits:
            name = _name(split)
            users[name] = users.get(name, 0) + 1
    return frozenset(slot for slot, splits in enumerate(inputs) if len(splits) == 1 and users[_name(splits[0])] == 1)


def lost_splits(
    lost: Iterable["KafkaCommittable"], *, cluster_id: str, topics: Mapping[str, "TopicFacts"]
) -> list[JsonObject]:
    """Return the split of each lost slot, in the order of ``lost``. Raises ReplayRefusedError.

    ``topics``: the sink's topics as the cluster reports them now. A recreated topic has lost more than these slots, and
    a different number of partitions would send a key elsewhere than the rest of its checkpoint.
    """
    splits = []
    for handle in lost:
        if not handle.replayable:
            raise ReplayRefusedError(
                f"slot {handle.slot} was not made of one input range alone: the plan moved rows between partitions"
            )
        if handle.cluster_id != cluster_id:
            raise ReplayRefusedError(
                f"slot {handle.slot} was written to cluster {handle.cluster_id}, the sink leads to {cluster_id} now"
            )
        for name, written in handle.topics.items():
            now = topics.get(name)
            if now is None or now.code != 0:
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
        splits.append(handle.inputs[0])
    return splits


def _name(split: JsonObject) -> str:
    return repr(sorted(split.items()))
