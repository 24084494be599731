"""A second run for tests that failed: each runs again once, alone in a process of its own, when the workers have ended.

A plugin of pytest, which scripts/check.sh and scripts/test.sh use. A test that passes then is flaky: it is shown with
the outputs of both runs and counted, and does not fail the run.
"""

import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import pytest

__all__ = ["LIMIT"]

_LIST = "PYTEST_FLAKY_LIST"
"""The variable with a file for the lines of flaky tests, if several runs are to list them together."""
LIMIT = 5
"""If more tests fail, something else is wrong than a race, and none runs again."""


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_SecondRuns(), "second-runs")


class _SecondRuns:
    def __init__(self) -> None:
        self._cut_short = False
        self._again: dict[str, str] = {}
        """By test that ran twice: the output of its second run."""
        self._flaky: dict[str, list[pytest.TestReport]] = {}
        """By test that passed then: the reports of its first run."""

    def pytest_internalerror(self) -> None:
        self._cut_short = True

    def pytest_keyboard_interrupt(self) -> None:
        self._cut_short = True

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, error: object | None) -> None:
        """A worker ended; with an error, it crashed."""
        self._cut_short = self._cut_short or error is not None

    @pytest.hookimpl(trylast=True)  # by then the workers have ended
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        terminal = _terminal(session.config)
        broken = terminal.stats.get("failed", []) + terminal.stats.get("error", [])
        collected = not any(isinstance(report, pytest.CollectReport) for report in broken)
        stopped = self._cut_short or session.shouldfail or session.shouldstop
        if exitstatus != pytest.ExitCode.TESTS_FAILED or stopped or not collected:
            return
        tests = list(dict.fromkeys(report.nodeid for report in broken))
        if len(tests) > LIMIT:
            terminal.write_line(f"\n{len(tests)} tests failed. None of them runs again: {LIMIT} may be flaky at most.")
            return
        for test in tests:
            terminal.write_line(f"\nfailed, runs again alone: {test}")
            passed, self._again[test] = _run_alone(session.config, test)
            if passed:
                self._flaky[test] = [report for report in _reports(terminal) if report.nodeid == test]
        for outcome in ("failed", "error"):
            if left := [report for report in terminal.stats.pop(outcome, []) if report.nodeid not in self._flaky]:
                terminal.stats[outcome] = left
        if self._flaky:
            terminal.stats["flaky"] = [reports[0] for reports in self._flaky.values()]
        if len(self._flaky) == len(tests):
            session.exitstatus = pytest.ExitCode.OK

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for test, output in self._again.items():
            terminalreporter.section(f"{'FLAKY' if test in self._flaky else 'FAILED TWICE'}: {test}", red=True)
            for report in self._flaky.get(test, []):
                if not report.passed:
                    terminalreporter.write_sep("_", f"first run, {report.when}")
                    terminalreporter.line(report.longreprtext)
            for name, content in _sections(self._flaky.get(test, [])):
                terminalreporter.write_sep("-", f"first run, {name}")
                terminalreporter.line(content)
            terminalreporter.write_sep("_", "second run, alone")
            terminalreporter.line(output)
        rows = [f"- {datetime.now(UTC):%Y-%m-%d} `{test}`" for test in self._flaky]
        if rows:
            terminalreporter.section("add to tests/flaky.md", red=True)
        for row in rows:
            terminalreporter.line(row)
        if _LIST in os.environ:
            with Path(os.environ[_LIST]).open("a") as file:
                file.writelines(f"{row}\n" for row in rows)


def _terminal(config: pytest.Config) -> pytest.TerminalReporter:
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    assert isinstance(terminal, pytest.TerminalReporter)
    return terminal


def _reports(terminal: pytest.TerminalReporter) -> Iterable[pytest.TestReport]:
    """All reports of this run; pytest keeps those of set-up and tear-down that passed without an outcome."""
    return [report for outcome in ("", "failed", "error") for report in terminal.stats.get(outcome, [])]


def _sections(reports: Iterable[pytest.TestReport]) -> Iterable[tuple[str, str]]:
    """What the test printed. Each report of a test repeats what earlier ones have."""
    return dict.fromkeys(section for report in reports for section in report.sections)


def _run_alone(config: pytest.Config, test: str) -> tuple[bool, str]:
    """Run a test without workers, with the options of this run. Return whether it passed, and the output.

    A test that is skipped this time, or expected to fail, has not passed.
    """
    chosen = config.option.file_or_dir
    options = [option for option in config.invocation_params.args if option not in chosen]
    with tempfile.TemporaryDirectory() as directory:
        output, result = Path(directory) / "output", Path(directory) / "result.xml"
        own = ["-p", f"no:{__name__}", "-n0", "-rP", "--junitxml", str(result), test]
        # to a file: what a test leaves behind may hold a pipe open
        with output.open("wb") as file:
            command = [sys.executable, "-m", "pytest", *options, *own]
            done = subprocess.run(command, cwd=config.rootpath, stdout=file, stderr=subprocess.STDOUT, check=False)
        passed = done.returncode == pytest.ExitCode.OK and ET.parse(result).find("testsuite[@skipped='0']") is not None
        return passed, output.read_text(errors="replace")
