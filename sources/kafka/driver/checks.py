"""Checks before a job starts, and before a Kafka source continues from positions."""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from onceward.common.errors import HaltedError
from onceward.connections.cluster import KafkaCluster
from onceward.connectors.interfaces import Examined, Finding, Risk, Severity
from onceward.sources.kafka.client import slow_release
from onceward.sources.kafka.control.metadata import BrokerView, TopicState
from onceward.sources.kafka.executor.offset_gone import OffsetGone, halt_for
from onceward.sources.kafka.executor.reader import OWNED_SETTINGS
from onceward.sources.kafka.positions import KafkaPositions, Partition

__all__ = [
    "client_findings",
    "confirm_topics",
    "durability_findings",
    "examine",
    "owned_setting_findings",
    "refuse_gone",
    "refuse_other_cluster",
    "refuse_other_topics",
    "refuse_outside",
    "security_findings",
    "topic_findings",
]

_ATTEMPTS = 3
_PAUSE_SECONDS = 1.0

_FORBIDDEN = ("group.id", "group.instance.id", "group.protocol", "transactional.id")
_IN_SYNC, _UNCLEAN = "min.insync.replicas", "unclean.leader.election.enable"
_SINK_OR_SOURCE = "it is set by the source, for each reader"


def examine(cluster: KafkaCluster, topics: Sequence[str], job: str | None) -> Examined:
    """For ``onceward doctor``: return what concerns sources alone, without a connection. The sink's side reads topics
    and rights."""
    return Examined(findings=[*client_findings(), *owned_setting_findings(cluster), *security_findings(cluster)])


def owned_setting_findings(cluster: KafkaCluster) -> Iterator[Finding]:
    """Report user settings that would break exactly-once reading."""
    wrong = {
        key: f"{key}={value} (must be {OWNED_SETTINGS[key]})"
        for key, value in cluster.config.items()
        if key in OWNED_SETTINGS and str(value).lower() != OWNED_SETTINGS[key]
    }
    wrong |= {key: f"{key}={cluster.config[key]} ({_SINK_OR_SOURCE})" for key in _FORBIDDEN if key in cluster.config}
    if wrong:
        yield Finding(
            severity=Severity.ERROR,
            subject=f"source cluster {cluster.name}",
            message=f"the configuration overrides what exactly-once reading rests on: {', '.join(wrong.values())}",
            fix=f"remove {', '.join(wrong)} from KafkaCluster(config=...)",
        )


def security_findings(cluster: KafkaCluster) -> Iterator[Finding]:
    """Report what the configuration leaves open to a peer on the network."""
    for message, fix in cluster.weaknesses():
        yield Finding(severity=Severity.WARNING, subject=f"cluster {cluster.name}", message=message, fix=fix)


def client_findings() -> Iterator[Finding]:
    """Report what slows reading down in the driver's environment; executors log it for theirs."""
    if (slow := slow_release()) is not None:
        yield Finding(
            severity=Severity.WARNING,
            subject="source's Kafka client",
            message=slow,
            fix="install confluent-kafka 2.16 where the executors run",
        )


def topic_findings(
    cluster: KafkaCluster, wanted: Collection[str], found: Mapping[str, TopicState]
) -> Iterator[Finding]:
    """Report topics that are missing or not readable."""
    missing = sorted(set(wanted) - found.keys())
    if missing:
        yield Finding(
            severity=Severity.ERROR,
            subject=f"source topics {', '.join(missing)}",
            message=f"{len(missing)} of {len(wanted)} topics do not exist on cluster {cluster.name} for this user",
            fix="create them, correct topics=, or grant READ on them",
        )
    # Empty if the brokers do not report permitted operations.
    unreadable = sorted(name for name, topic in found.items() if topic.operations and "READ" not in topic.operations)
    if unreadable:
        yield Finding(
            severity=Severity.ERROR,
            subject=f"source topics {', '.join(unreadable)}",
            message="the user may describe but not read them",
            fix="grant READ on them",
        )


def durability_findings(found: Mapping[str, TopicState], view: BrokerView) -> Iterator[Finding]:
    """Report what can make topics lose acknowledged records, before or after this job has read them."""
    settings = view.topic_settings(found, [_IN_SYNC, _UNCLEAN])
    for name, topic in sorted(found.items()):
        subject = f"source topic {name}"
        if topic.replication < 3:
            yield _warning(
                subject,
                f"has replication factor {topic.replication}, below 3",
                "raise it, else one disk can lose data, and the job halts when it does",
                Risk.REPLICATION,
            )
        known = settings.get(name)
        if known is None:
            yield _warning(subject, "its settings may not be read", "grant DESCRIBE_CONFIGS to have them checked")
            continue
        if int(known.get(_IN_SYNC, "1")) < 2:
            yield _warning(subject, f"{_IN_SYNC} is {known.get(_IN_SYNC)}, below 2", "set it to 2", Risk.REPLICATION)
        if known.get(_UNCLEAN) == "true":
            yield _warning(
                subject,
                "unclean leader election is allowed, which loses confirmed records, and then the job halts",
                f"set {_UNCLEAN}=false",
            )


def _warning(subject: str, message: str, fix: str, risk: Risk | None = None) -> Finding:
    return Finding(severity=Severity.WARNING, subject=subject, message=message, fix=fix, risk=risk)


def refuse_other_cluster(positions: KafkaPositions, cluster: KafkaCluster, cluster_id: str) -> None:
    """Raise HaltedError if the bootstrap servers lead to another cluster than that of the positions."""
    if positions.cluster_id != cluster_id:
        raise HaltedError(
            f"The positions are of Kafka cluster {positions.cluster_id} ({positions.cluster!r}), but "
            f"{cluster.bootstrap_servers} leads to cluster {cluster_id}. Offsets mean nothing there, so nothing was "
            "read. Point the source at the cluster of the positions, or start a job under another name."
        )


def confirm_topics(
    ask: Callable[[Collection[str]], dict[str, TopicState]], names: Collection[str]
) -> dict[str, TopicState]:
    """Return the topics that exist, by ``ask``: a method of `BrokerView`. A missing one is checked again: brokers learn
    of new topics one after another."""
    found = ask(names)
    for _ in range(_ATTEMPTS - 1):
        if len(found) == len(set(names)):
            break
        time.sleep(_PAUSE_SECONDS)
        found = ask(names)
    return found


def refuse_other_topics(positions: KafkaPositions, names: Collection[str], found: Mapping[str, TopicState]) -> None:
    """Raise HaltedError for topics of ``names`` that were deleted or recreated after the positions were taken, or that
    lost partitions."""
    problems = []
    for name in sorted(names):
        known = positions.topics.get(name)
        if known is None:
            continue
        now = found.get(name)
        if now is None:
            problems.append(f"topic {name} (id {known.id}) does not exist any more")
        elif now.id != known.id:
            problems.append(f"topic {name} was deleted and recreated: its id was {known.id} and is {now.id}")
        elif not set(known.partitions) <= set(now.partitions):
            lost = sorted(set(known.partitions) - set(now.partitions))
            problems.append(f"topic {name} (id {known.id}) has lost its partitions {lost}")
    if problems:
        raise HaltedError(
            f"The input is another one: {'; '.join(problems)}. Offsets of the old topic mean nothing in a new one, "
            "so nothing was read. To read the new topic from its start, start a job under another name, or remove the "
            "topic from the source."
        )


def refuse_outside(
    positions: KafkaPositions,
    read: Collection[Partition],
    log_starts: Mapping[Partition, int],
    log_ends: Mapping[Partition, int],
) -> None:
    """Raise HaltedError for partitions whose log no longer holds the position. Finished partitions need no log."""
    gone = [
        OffsetGone(
            topic=partition.topic,
            partition=partition.number,
            position=cursor.next,
            end=log_ends[partition] if cursor.end is None else cursor.end,
            log_start=log_starts[partition],
            log_end=log_ends[partition],
        )
        for partition, cursor in positions
        if partition in read
        and partition in log_starts
        and partition in log_ends
        and not cursor.done
        and not log_starts[partition] <= cursor.next <= log_ends[partition]
    ]
    refuse_gone(gone)


def refuse_gone(gone: Sequence[OffsetGone]) -> None:
    """Raise HaltedError naming all of them."""
    if len(gone) == 1:
        raise halt_for(gone[0])
    if gone:
        raise HaltedError("\n".join(str(halt_for(one)) for one in gone))
