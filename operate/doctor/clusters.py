"""What systems say: the findings of a job's preflight, asked through their kinds."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from onceward.common.errors import ConfigurationError, OncewardError
from onceward.connectors.interfaces import Examined, Finding, Severity
from onceward.connectors.slots import Library
from onceward.coordinator.service.kinds import installed_kinds, part
from onceward.operate.doctor.check import Check, Level
from onceward.operate.options import systems_of
from onceward.protocol.kinds import NamedSystem

__all__ = ["check_clusters", "named_clusters"]

_Examine: TypeAlias = Callable[[Any, Sequence[str], str | None], Examined]
"""See :attr:`Kind.doctor`."""


def named_clusters(
    command: str, servers: str | None, clusters: Path | None, topics: Sequence[str]
) -> Mapping[str, tuple[NamedSystem, Sequence[str]]]:
    """Return each system with its topics or tables, by name. Raises ConfigurationError for options of ``command`` that
    do not fit together."""
    if servers is not None and clusters is not None:
        raise _usage(command, "give either --cluster HOST:PORT or --systems FILE")
    if servers is None and clusters is None:
        if topics:
            raise _usage(command, "--topic needs brokers to ask: --cluster HOST:PORT or --systems FILE")
        return {}
    if servers is not None:
        try:
            from onceward.connections.cluster import KafkaCluster
        except ImportError as error:
            raise _usage(command, f"--cluster needs the Kafka clients: {error}") from error
        if named := [topic for topic in topics if ":" in topic]:
            raise _usage(
                command, f"--topic {named[0]} names a cluster of --systems FILE; with --cluster give the topic alone"
            )
        return {"main": (NamedSystem(kind="kafka", configuration=KafkaCluster(servers)), topics)}
    assert clusters is not None
    known = systems_of(clusters, "asked")
    by_cluster: dict[str, list[str]] = {name: [] for name in known}
    for one in topics:
        name, _, topic = one.rpartition(":")
        if name not in known:
            raise _usage(command, f"--topic is SYSTEM:NAME with one of {', '.join(known)}, not {one}")
        by_cluster[name].append(topic)
    return {name: (system, by_cluster[name]) for name, system in known.items()}


def check_clusters(
    named: Mapping[str, tuple[NamedSystem, Sequence[str]]],
    job: str | None,
    libraries: dict[Library, str] | None = None,
) -> Iterator[Check]:
    """Yield what each system says. One that does not answer hides no other.

    :param libraries: gets what executors need to write there, each with the names of systems.
    """
    needed = {} if libraries is None else libraries
    for name, (system, topics) in named.items():
        yield from _check_system(name, system, topics, job, needed)


def _check_system(
    name: str, system: NamedSystem, topics: Sequence[str], job: str | None, needed: dict[Library, str]
) -> Iterator[Check]:
    findings: dict[Finding, None] = {}
    kind = installed_kinds("asked").get(system.kind)
    if kind is None or not kind.doctor:
        why = f"no installed package has checks of systems of kind {system.kind}"
        yield Check(subject=f"system {name}", found=why, level=Level.ERROR, remedy="install the package of that kind")
        return
    for where in kind.doctor:
        try:
            examine: _Examine = part(system.kind, where, "asked")
            examined = examine(system.configuration, topics, job)
        except OncewardError as error:
            remedy = "correct what the message names, then run doctor again"
            yield Check(subject=f"system {name}", found=str(error), level=Level.ERROR, remedy=remedy)
            continue
        yield from (Check(subject=subject, found=what) for subject, what in examined.facts)
        for subject, why, remedy in examined.unknown:
            yield Check(subject=subject, found=why, level=Level.UNKNOWN, remedy=remedy)
        findings |= dict.fromkeys(examined.findings)
        for library in examined.libraries:
            needed[library] = ", ".join(filter(None, (needed.get(library), name)))
    for finding in findings:
        level = Level.ERROR if finding.severity is Severity.ERROR else Level.WARNING
        yield Check(subject=finding.subject, found=finding.message, level=level, remedy=finding.fix)


def _usage(command: str, message: str) -> ConfigurationError:
    return ConfigurationError(f"onceward {command}: {message}. Nothing was asked.")
