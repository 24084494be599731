"""The preflight reports all errors in one message and refuses the job."""

import logging
from collections.abc import Sequence
from typing import Any

import pytest

from onceward.coordinator.errors import ConfigurationError, OncewardError, PreflightError
from onceward.coordinator.pipeline.interfaces import Finding, Severity
from onceward.coordinator.pipeline.preflight import examine, require_safe

WARNING, ERROR = Severity.WARNING, Severity.ERROR


def finding(severity: Severity, subject: str) -> Finding:
    return Finding(severity=severity, subject=subject, message="is 1 instead of 2", fix="set 2")


class Side:
    """A source or a sink with the findings that a test sets."""

    def __init__(self, *findings: Finding, overlap: str | None = None, error: Exception | None = None) -> None:
        self._findings, self._overlap, self._error = findings, overlap, error

    def preflight(self) -> Sequence[Finding]:
        if self._error is not None:
            raise self._error
        return self._findings

    def overlaps(self, _sink: Any) -> str | None:
        return self._overlap


def found(source: Any, sink: Any) -> list[Finding]:
    return examine(source, sink)


def test_all_errors_are_reported_together_and_warnings_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    findings = [finding(ERROR, "topic a"), finding(WARNING, "topic b"), finding(ERROR, "topic c")]
    with caplog.at_level(logging.WARNING), pytest.raises(PreflightError) as refused:
        require_safe("orders", findings)
    assert str(refused.value) == (
        "Job orders was not started, no data was touched:\n"
        "  topic a: is 1 instead of 2 — fix: set 2\n"
        "  topic c: is 1 instead of 2 — fix: set 2"
    )
    assert caplog.messages == ["topic b: is 1 instead of 2 — fix: set 2"]


def test_warnings_alone_keep_no_job_from_starting() -> None:
    require_safe("orders", [])
    require_safe("orders", [finding(WARNING, "topic b")])


def test_both_sides_are_asked_and_what_they_would_do_to_each_other() -> None:
    first, second = finding(WARNING, "input"), finding(WARNING, "output")
    assert found(Side(first), Side(second)) == [first, second]
    *others, overlap = found(Side(first, overlap="orders is input and output"), Side(second))
    assert others == [first, second]
    assert (overlap.severity, overlap.message) == (ERROR, "orders is input and output")


def test_an_overlap_is_not_looked_for_where_one_side_is_wrong() -> None:
    wrong = finding(ERROR, "output")
    assert found(Side(overlap="never asked"), Side(wrong)) == [wrong]


@pytest.mark.parametrize("source_fails", [True, False])
def test_a_cluster_that_gives_no_answer_is_not_taken_for_a_safe_one(source_fails: bool) -> None:
    failing = Side(error=OncewardError("no broker answers"))
    sides = (failing, Side()) if source_fails else (Side(), failing)
    with pytest.raises(PreflightError, match="The preflight could not be finished: no broker answers"):
        found(*sides)


def test_an_error_with_a_meaning_of_its_own_keeps_it() -> None:
    with pytest.raises(ConfigurationError, match="no such option"):
        found(Side(error=ConfigurationError("no such option")), Side())
