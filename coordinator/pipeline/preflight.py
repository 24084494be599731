"""Find everything that would make a job unsafe before anything starts, and report it in one message."""

from collections.abc import Iterable, Sequence

from onceward.coordinator.errors import ExitCode, OncewardError, PreflightError
from onceward.coordinator.pipeline.interfaces import Finding, Severity, Sink, Source
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
        findings = [*source.preflight(), *sink.preflight()]
    except OncewardError as error:
        if error.exit_code is not ExitCode.BUG:
            raise
        raise PreflightError(f"The preflight could not be finished: {error}") from error
    overlap = None if _has_error(findings) else source.overlaps(sink)
    if overlap:
        findings.append(
            Finding(
                severity=Severity.ERROR,
                subject="topics",
                message=overlap,
                fix="write to a topic that the job does not read",
            )
        )
    return findings


def _has_error(findings: Iterable[Finding]) -> bool:
    return any(finding.severity is Severity.ERROR for finding in findings)


def _line(finding: Finding) -> str:
    return f"{finding.subject}: {finding.message} — fix: {finding.fix}"
