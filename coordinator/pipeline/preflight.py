"""Find everything that would make a job unsafe before anything starts, and report it in one message."""

from collections.abc import Sequence

from onceward.coordinator.errors import ExitCode, OncewardError, PreflightError
from onceward.coordinator.pipeline.interfaces import Finding, Resource, Severity, Sink, Source
from onceward.coordinator.printable import logger

_log = logger("onceward.preflight")


def require_safe(job: str, findings: Sequence[Finding]) -> None:
    """Log warnings; raise PreflightError with all errors if there are any."""
    for finding in findings:
        if finding.severity is Severity.WARNING:
            _log.warning("%s", _line(finding))
    errors = [finding for finding in findings if finding.severity is Severity.ERROR]
    if errors:
        raise PreflightError(
            f"Job {job} was not started, no data was touched:\n"
            + "\n".join(f"  {_line(finding)}" for finding in errors)
        )


def examine(source: Source, sink: Sink) -> list[Finding]:
    """Return the findings of source and sink on their clusters, and conflicts between the two.

    Raises PreflightError when a cluster gives no usable answer.
    """
    try:
        findings = list(dict.fromkeys((*source.preflight(), *sink.preflight())))  # they may share a cluster
    except OncewardError as error:
        if error.exit_code is not ExitCode.BUG:
            raise
        raise PreflightError(f"The preflight could not be finished: {error}") from error
    if not any(finding.severity is Severity.ERROR for finding in findings):
        findings += [_feedback(resource) for resource in sink.writes() if source.reads(resource)]
    return findings


def _feedback(resource: Resource) -> Finding:
    return Finding(
        severity=Severity.ERROR,
        subject=f"{resource.kind} {resource.name}",
        message=f"on cluster {resource.cluster} it would be input and output: the job would feed itself",
        fix="write to one that the job does not read",
    )


def _line(finding: Finding) -> str:
    return f"{finding.subject}: {finding.message} — fix: {finding.fix}"
