"""Finds the cluster of a committable's transaction among those at hand, by the cluster's id, never by its address."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from onceward.sinks.kafka.control.committables import KafkaCommittable
from onceward.sinks.kafka.control.control_plane import ControlPlane
from onceward.sinks.kafka.errors import ControlPlaneError

__all__ = ["ClusterLookup", "reach"]


@dataclass(frozen=True, kw_only=True)
class ClusterLookup:
    """The clusters on which committables were found."""

    found: Sequence[tuple[ControlPlane, Sequence[KafkaCommittable]]]
    elsewhere: dict[int, str]
    """By slot, why no cluster matches: all clusters answered, and none has the id. No request about it was sent."""

    def missing(self, handles: Iterable[KafkaCommittable]) -> dict[int, str]:
        """Return why the cluster of each of these was not found, by slot; omits those on a cluster in ``found``."""
        here = {handle.slot for _, group in self.found for handle in group}
        unreached = "its cluster cannot be reached"
        return {one.slot: self.elsewhere.get(one.slot, unreached) for one in handles if one.slot not in here}


def reach(controls: Iterable[ControlPlane], handles: Sequence[KafkaCommittable]) -> ClusterLookup:
    """Ask the clusters for their ids. Clusters that do not answer are asked again in the caller's next call.

    Clusters that the committables name are asked first, and the search ends once all are found: a dead cluster delays
    only its own committables.
    """
    names = {handle.cluster_name for handle in handles}
    wanted = {handle.cluster_id for handle in handles}
    ids: dict[str, ControlPlane] = {}
    all_answered = True
    for control in sorted(controls, key=lambda control: control.cluster.name not in names):
        if wanted <= ids.keys():
            break
        try:
            ids[control.cluster_id()] = control
        except ControlPlaneError:
            all_answered = False
    groups: dict[str, list[KafkaCommittable]] = {}
    elsewhere: dict[int, str] = {}
    for handle in handles:
        if handle.cluster_id in ids:
            groups.setdefault(handle.cluster_id, []).append(handle)
        elif all_answered:
            reached = ", ".join(f"{control.cluster.name!r} is {found}" for found, control in ids.items())
            elsewhere[handle.slot] = (
                f"the transaction is on cluster {handle.cluster_name!r} with id {handle.cluster_id}, "
                f"but the clusters reached now are others ({reached}); nothing was asked there"
            )
    return ClusterLookup(found=[(ids[found], group) for found, group in groups.items()], elsewhere=elsewhere)
