"""Find everything that would make a job unsafe before anything starts, and report it in one message."""

from collections.abc import Collection, Sequence

from onceward.common.errors import ConfigurationError, ExitCode, OncewardError, PreflightError
from onceward.common.printable import logger
from onceward.connectors.interfaces import Finding, Resource, Risk, Severity, SinkSession, Source
from onceward.connectors.letters import DEAD_LETTERS

_log = logger("onceward.preflight")


_said: set[tuple[str, Finding]] = set()
"""The warnings of each job that this process has logged: its restarts do not repeat them."""


def accepted_risks(names: Collection[str]) -> frozenset[Risk]:
    """Check the argument ``accept_risks``. Raises ConfigurationError for an unknown name."""
    known = ", ".join(Risk)
    listed = isinstance(names, Collection) and not isinstance(names, str)
    if not listed or not all(name in list(Risk) for name in names):
        raise ConfigurationError(
            f"accept_risks: {names!r} is not a list of known risks. Nothing was started. The known ones are: {known}."
        )
    return frozenset(Risk(name) for name in names)


def require_safe(job: str, findings: Sequence[Finding], accepted: Collection[Risk] = ()) -> None:
    """Log the warnings that this process has not logged for the job, in one block; an ``accepted`` risk is one line.
    Raise PreflightError with all errors if there are any."""
    warnings = [one for one in findings if one.severity is Severity.WARNING and (job, one) not in _said]
    _said.update((job, one) for one in warnings)
    shown = [one for one in warnings if one.risk not in accepted]
    if shown:
        risks = sorted({one.risk for one in shown if one.risk is not None})
        lines = [f"Job {job} starts, with warnings:", *(f"  {_line(one)}" for one in shown)]
        if risks:
            lines.append(f"  To accept what concerns {', '.join(risks)}: accept_risks={list(map(str, risks))}")
        _log.warning("%s", "\n".join(lines))
    for risk in sorted({one.risk for one in warnings if one.risk is not None and one.risk in accepted}):
        _log.warning("Job %s: the risk %s is accepted", job, risk)
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if errors:
        raise PreflightError(
            f"Job {job} was not started, no data was touched:\n"
            + "\n".join(f"  {_line(finding)}" for finding in errors)
        )


def examine(source: Source, sinks: Sequence[SinkSession]) -> list[Finding]:
    """Return the findings of source and sinks on their clusters, and conflicts between them.

    Raises PreflightError when a cluster gives no usable answer.
    """
    try:
        each = [source.preflight(), *(sink.preflight() for sink in sinks)]
        findings = list(dict.fromkeys(one for found in each for one in found))  # they may share a cluster
    except OncewardError as error:
        if error.exit_code is not ExitCode.BUG:
            raise
        raise PreflightError(f"The preflight could not be finished: {error}") from error
    if not any(finding.severity is Severity.ERROR for finding in findings):
        findings += [_feedback(resource) for sink in sinks for resource in sink.writes() if source.reads(resource)]
        dead = {resource for sink in sinks if sink.participant.name == DEAD_LETTERS for resource in sink.writes()}
        others = {resource for sink in sinks if sink.participant.name != DEAD_LETTERS for resource in sink.writes()}
        findings += [_mixed(resource) for resource in sorted(dead & others, key=str)]
    return findings


def _feedback(resource: Resource) -> Finding:
    return Finding(
        severity=Severity.ERROR,
        subject=f"{resource.kind} {resource.name}",
        message=f"on cluster {resource.cluster} it would be input and output: the job would feed itself",
        fix="write to one that the job does not read",
    )


def _mixed(resource: Resource) -> Finding:
    return Finding(
        severity=Severity.ERROR,
        subject=f"{resource.kind} {resource.name}",
        message="it would have dead letters among the records of an output, whose readers take them for ordinary ones",
        fix="write the letters to a place of their own",
    )


def _line(finding: Finding) -> str:
    return f"{finding.subject}: {finding.message} — fix: {finding.fix}"
