"""The table of versions says what ran: a group passes only if something ran and nothing failed."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.versions.interpreters import NotOfferedError, interpreter
from tests.versions.matrix import AXES, GROUPS, OWN, Group, Result, results, tally
from tests.versions.table import END, START, fill, rendered

ROOT = Path(__file__).resolve().parents[2]
PASSED = {name: Group(passed=3) for name in (*GROUPS, OWN)}
REPORT = """<testsuites><testsuite>
<testcase classname="tests.integration.test_kill_points" name="test_a[x]"/>
<testcase classname="tests.integration.test_doctor" name="test_b"><failure message="no"/></testcase>
<testcase classname="tests.integration.test_kafka_sink" name="test_all_problems_are_found_together"/>
<testcase classname="tests.integration.test_kafka_sink" name="test_all_problems_are_found_together_too"/>
<testcase classname="tests.integration.test_replay" name="test_c"><skipped message="Skipped: no such thing"/></testcase>
<testcase classname="tests.integration.test_claims" name="test_d"><error message="in its fixture"/></testcase>
<testcase classname="tests.integration.test_claims" name="test_e"><skipped message="Skipped: no such thing"/></testcase>
</testsuite></testsuites>"""


def result(axis: str = "kafka", version: str = "3.9", **said: object) -> Result:
    return Result(**{"axis": axis, "version": version, "exact": f"{version}.2", "date": "2026-11-25", **said})  # type: ignore[arg-type]


def test_a_report_is_sorted_into_groups(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    kills, preflight, replay, own = tally(AXES["kafka"].groups, tmp_path / "report.xml").values()
    assert kills == Group(passed=1)
    assert preflight == Group(passed=1, failed=["tests/integration/test_doctor.py::test_b"])
    assert replay == Group(skipped={"no such thing": 1})
    assert own == Group(passed=1, failed=["tests/integration/test_claims.py::test_d"], skipped={"no such thing": 1})


def test_a_group_passes_only_if_something_ran_and_nothing_failed() -> None:
    assert Group(passed=2, skipped={"why": 1}).good
    assert not Group(passed=2, failed=["one"]).good
    assert not Group(skipped={"why": 2}).good, "nothing ran"


def test_the_table_says_passed_failed_not_run_and_could_not_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.versions.table.AXES", {**AXES, "kafka": replace(AXES["kafka"], default=("3.10", "3.9"))})
    mixed = {**PASSED, "preflight": Group(passed=2, failed=["one"]), "replay": Group(skipped={"no | here": 4})}
    del mixed["kills"]
    lines = rendered(
        [
            result(groups=mixed),
            result("python", "3.14", exact="", missing="no python3.14"),
            result("postgres", "18", groups={OWN: Group(passed=5)}),
        ]
    ).splitlines()
    assert [line.split(" | ")[1] for line in lines[2:4]] == ["3.9.2", "3.10"]
    assert lines[3] == "| Kafka brokers | 3.10 | not run yet |  |  |  |  |"
    assert lines[0] == "|  | version | main job with kills | preflight | replay | what it may change | skipped |"
    assert lines[2] == "| Kafka brokers | 3.9.2 | not run yet | FAIL: 1 of 3 | nothing ran | PASS: 3 | 4: no \\| here |"
    assert lines[6] == "| Python | 3.14 | could not be had: no python3.14 |  |  |  |  |"
    assert lines[-1] == "| PostgreSQL | 18.2 |  |  |  | PASS: 5 |  |"
    assert {line.replace("\\|", "").count("|") for line in lines} == {8}


def test_results_are_kept_until_their_version_runs_again(tmp_path: Path) -> None:
    result(missing="no network").write(tmp_path)
    kept = [result(groups=PASSED), result("python", "3.9", missing="old")]
    for one in kept:
        one.write(tmp_path)
    assert sorted(results(tmp_path), key=lambda one: one.axis) == kept


def test_a_page_keeps_what_people_wrote_and_needs_its_markers(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"by hand\n\n{START}\nold\n{END}\n\nalso by hand\n")
    for _ in range(2):
        fill(page, [result(groups=PASSED)])
        assert page.read_text() == (
            f"by hand\n\n{START}\n\n{rendered([result(groups=PASSED)])}\n\n{END}\n\nalso by hand\n"
        )
    page.write_text("by hand\n")
    with pytest.raises(ValueError, match="lacks the line"):
        fill(page, [])


def test_the_page_shows_the_kept_results() -> None:
    page = (ROOT / "docs/reference/supported.md").read_text()
    shown = page.partition(START)[2].partition(END)[0].strip()
    assert shown == rendered(results(ROOT / "tests/versions/results")), "write it with: make versions TABLE=1"


def test_each_selected_test_is_there() -> None:
    for axis in AXES.values():
        for selector in (one for selectors in axis.groups.values() for one in selectors):
            path, _, name = selector.partition("::")
            assert (ROOT / path).exists(), path
            assert not name or f"def {name}(" in (ROOT / path).read_text(), selector


def test_an_interpreter_is_the_one_that_runs_and_a_version_without_one_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def add(place: str, says: str) -> Path:
        program = tmp_path / place
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\n{says}\n")
        program.chmod(0o755)
        return program

    add("shims/python3.99", "echo 'python3.99: command not found' >&2; exit 127")
    monkeypatch.setenv("PATH", str(tmp_path / "shims"))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    with pytest.raises(NotOfferedError, match=r"no python3\.99 on PATH or in pyenv"):
        interpreter("3.99")
    kept = add("pyenv/versions/3.99.1/bin/python", "echo 3.99")
    assert interpreter("3.99") == kept
