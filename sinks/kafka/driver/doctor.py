"""What ``onceward doctor`` asks a cluster: the preflight of a sink, without a job that starts."""

from collections.abc import Iterator, Sequence
from datetime import timedelta

from onceward.connections.admin import reach
from onceward.connections.cluster import KafkaCluster
from onceward.connections.codes import ErrorCode
from onceward.connections.topics import TopicFacts
from onceward.connectors.interfaces import Examined
from onceward.protocol.settings import CheckpointSettings
from onceward.sinks.kafka.control.brokers import Resource, settings, topic_facts
from onceward.sinks.kafka.control.control_plane import ControlPlane
from onceward.sinks.kafka.driver import preflight

__all__ = ["examine"]

_IN_SYNC = "min.insync.replicas"
_GRANTED = {True: "granted", False: "not granted", None: "unknown"}


_RIGHTS = ("rights on transactional ids and groups", "they depend on the job's name", "add --job JOB")


def examine(cluster: KafkaCluster, topics: Sequence[str], job: str | None) -> Examined:
    """Return facts and all findings. Creates nothing, but brokers of a new cluster may then
    create their internal topics.

    ``job``: its rights are checked; None = none are. Raises PreflightError if the cluster cannot be reached,
    ControlPlaneError if it stops answering.
    """
    cluster_id = reach(cluster)
    control = ControlPlane(cluster)
    try:
        check = preflight.SinkCheck(
            cluster=cluster,
            job=job,
            sink="sink",
            topics=topics,
            checkpoint_timeout=timedelta(seconds=CheckpointSettings().seconds("timeout")),
            transaction_timeout=None,
            starts=False,
        )
        facts = [
            (
                f"cluster {cluster.name}",
                f"{cluster_id}, {len(control.nodes())} brokers, transaction.version {control.transaction_version()}",
            ),
            *_topics(control, topics),
            ("transaction timeout", str(preflight.transaction_timeout(control, None))),
        ]
        findings = preflight.examine(control, check)
        return Examined(facts=facts, findings=findings, unknown=[_RIGHTS] if job is None else [])
    finally:
        control.close()


def _topics(control: ControlPlane, topics: Sequence[str]) -> Iterator[tuple[str, str]]:
    for name, topic in topic_facts(control, topics).items():
        if topic.code == ErrorCode.NONE:
            known = settings(control, Resource.TOPIC, name, (_IN_SYNC,)) or {}
            yield (
                f"topic {name}",
                f"{topic.partitions} partitions, replication factor {topic.replication}, "
                f"min ISR {known.get(_IN_SYNC, 'unknown')}, {_rights(topic)}",
            )


def _rights(topic: TopicFacts) -> str:
    return f"READ {_GRANTED[topic.may_read]}, WRITE {_GRANTED[topic.may_write]}"
