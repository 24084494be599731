"""What clusters say: the findings of a job's preflight, asked through plug-ins (entry points ``onceward.doctor``)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, TypeAlias

from onceward.common.errors import ConfigurationError, OncewardError
from onceward.connectors.interfaces import Finding, Severity
from onceward.operate.doctor.check import Check, Level
from onceward.operate.options import clusters_of

__all__ = ["check_clusters", "named_clusters"]

_Examine: TypeAlias = Callable[[Any, Sequence[str], str | None], tuple[Sequence[tuple[str, str]], Sequence[Finding]]]
"""(cluster, its topics, job) -> facts (subject, what was found), findings."""

_POINTS = "onceward.doctor"


def named_clusters(
    command: str, servers: str | None, clusters: Path | None, topics: Sequence[str]
) -> Mapping[str, tuple[Any, Sequence[str]]]:
    """Return each cluster with its topics, by name. Raises ConfigurationError for options of ``command`` that do not
    fit together."""
    if servers is not None and clusters is not None:
        raise _usage(command, "give either --cluster HOST:PORT or --clusters FILE")
    if servers is None and clusters is None:
        if topics:
            raise _usage(command, "--topic needs brokers to ask: --cluster HOST:PORT or --clusters FILE")
        return {}
    if servers is not None:
        try:
            from onceward.connections.cluster import KafkaCluster
        except ImportError as error:
            raise _usage(command, f"--cluster needs the Kafka clients: {error}") from error
        if named := [topic for topic in topics if ":" in topic]:
            raise _usage(
                command, f"--topic {named[0]} names a cluster of --clusters FILE; with --cluster give the topic alone"
            )
        return {"main": (KafkaCluster(servers), topics)}
    assert clusters is not None
    known = clusters_of(clusters, "asked")
    by_cluster: dict[str, list[str]] = {name: [] for name in known}
    for one in topics:
        name, _, topic = one.rpartition(":")
        if name not in known:
            raise _usage(command, f"--topic is CLUSTER:TOPIC with one of {', '.join(known)}, not {one}")
        by_cluster[name].append(topic)
    return {name: (cluster, by_cluster[name]) for name, cluster in known.items()}


def check_clusters(named: Mapping[str, tuple[Any, Sequence[str]]], job: str | None) -> Iterator[Check]:
    """Yield what each cluster says. One that does not answer hides no other."""
    for name, (cluster, topics) in named.items():
        yield from _check_cluster(name, cluster, topics, job)
    if named and job is None:
        yield Check(
            subject="rights on transactional ids and groups",
            found="they depend on the job's name",
            level=Level.UNKNOWN,
            remedy="add --job JOB",
        )


def _check_cluster(name: str, cluster: Any, topics: Sequence[str], job: str | None) -> Iterator[Check]:
    findings: dict[Finding, None] = {}
    points = entry_points(group=_POINTS)
    if not points:
        why = f"no installed package has checks of clusters ({_POINTS})"
        yield Check(subject=f"cluster {name}", found=why, level=Level.ERROR, remedy="install onceward again")
    for point in points:
        try:
            examine: _Examine = point.load()
            facts, found = examine(cluster, topics, job)
        except ImportError as error:
            why = f"cannot be asked: {error}"
            yield Check(subject=f"cluster {name}", found=why, level=Level.ERROR, remedy="pip install 'onceward[kafka]'")
            continue
        except OncewardError as error:
            remedy = "correct what the message names, then run doctor again"
            yield Check(subject=f"cluster {name}", found=str(error), level=Level.ERROR, remedy=remedy)
            continue
        yield from (Check(subject=subject, found=what) for subject, what in facts)
        findings |= dict.fromkeys(found)
    for finding in findings:
        level = Level.ERROR if finding.severity is Severity.ERROR else Level.WARNING
        yield Check(subject=finding.subject, found=finding.message, level=level, remedy=finding.fix)


def _usage(command: str, message: str) -> ConfigurationError:
    return ConfigurationError(f"onceward {command}: {message}. Nothing was asked.")
