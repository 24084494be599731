"""A test that failed runs again alone, and only what passes then is forgiven, as flaky (tests/support/flaky.py)."""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.flaky import LIMIT

ROOT = Path(__file__).resolve().parents[2]
WORKERS = ("-n2", "--dist", "loadfile")
SECOND_TIME = """
import os, pathlib, pytest

def second_time(name="seen"):
    '''Whether this was called before, by any process.'''
    seen = pathlib.Path(__file__).with_name(name)
    had = seen.exists()
    seen.touch()
    return had
"""
FLAKY = """
def test_flaky():
    assert second_time("flaky")
"""


@dataclass(frozen=True, kw_only=True)
class Ended:
    code: int
    output: str

    @property
    def counts(self) -> str:
        """The last line of the run, without the time it took."""
        return (
            next(line for line in reversed(self.output.splitlines()) if " in " in line).partition(" in ")[0].strip("= ")
        )

    @property
    def second_runs(self) -> list[str]:
        start = "failed, runs again alone: "
        return [line.removeprefix(start) for line in self.output.splitlines() if line.startswith(start)]


ONLY_WORKERS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "xdist.plugin"}
"""Halves the time of a start."""
ALL_PLUGINS: dict[str, str] = {}


def run(
    directory: Path,
    text: str,
    options: Sequence[str] = WORKERS,
    plugins: Mapping[str, str] = ONLY_WORKERS,
    **variables: str,
) -> Ended:
    """Run a project of one file."""
    (directory / "test_it.py").write_text(SECOND_TIME + text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-ra", "-p", "tests.support.flaky", *options, "test_it.py"],
        cwd=directory,
        env=_own_variables() | {"PYTHONPATH": str(ROOT), **plugins, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return Ended(code=done.returncode, output=done.stdout)


def _own_variables() -> dict[str, str]:
    """Those of this process, without those of a worker and those by which Hypothesis knows a build server."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "CI", "GITHUB_"))}


EVERY_PHASE = """
@pytest.fixture(scope="module")
def shared():
    print("begin")
    yield
    assert second_time("tear-down")

@pytest.fixture
def fails_at_first(shared):
    assert second_time("set-up")

@pytest.mark.parametrize("text", ["[a]::b c|`-n4`\\n\\0é"])
def test_call(shared, text):
    print("said by the test")
    assert second_time("call"), "for this reason"

def test_set_up(fails_at_first):
    pass

def test_subtest(shared, subtests):
    with subtests.test("part"):
        assert second_time("part")

def test_tear_down(shared):
    pass
"""


@pytest.mark.slow
def test_a_test_that_passes_alone_is_shown_with_both_outputs_and_does_not_fail_the_run(tmp_path: Path) -> None:
    (tmp_path / "list").touch()
    ended = run(tmp_path, EVERY_PHASE, plugins=ALL_PLUGINS, PYTEST_FLAKY_LIST=str(tmp_path / "list"))
    assert ended.code == 0, ended.output
    assert ended.counts == "1 passed, 4 flaky"  # passed: the call whose tear-down failed
    first, second = ended.output.partition("second run, alone")[::2]
    assert "AssertionError: for this reason" in first
    assert first.count("said by the test") == 1 + 1  # in the code that is shown, and in what it printed
    assert second.partition("FLAKY:")[0].count("said by the test") == 1
    assert "1 passed" in second
    lines = [line for line in ended.output.splitlines() if line.startswith("- 20")]
    assert (tmp_path / "list").read_text().splitlines() == lines
    rows = [line.partition("`")[2].rpartition("`")[0] for line in lines]
    assert rows == ended.second_runs
    assert {row.partition("[")[0] for row in rows} == {
        f"test_it.py::test_{what}" for what in ("call", "set_up", "subtest", "tear_down")
    }


@pytest.mark.slow
def test_a_test_that_fails_twice_fails_the_run(tmp_path: Path) -> None:
    ended = run(tmp_path, FLAKY + "def test_wrong():\n    assert second_time('wrong') is None")
    assert ended.code == 1
    assert ended.counts == "1 failed, 1 flaky"
    assert ended.second_runs == ["test_it.py::test_flaky", "test_it.py::test_wrong"]
    assert "FAILED test_it.py::test_wrong" in ended.output
    assert "assert False is None" in ended.output, "the first output"
    assert "assert True is None" in ended.output, "the second output"


@pytest.mark.slow
def test_a_test_that_is_skipped_the_second_time_has_not_passed(tmp_path: Path) -> None:
    text = """
def test_skipped():
    assert second_time("skipped")
    pytest.skip("no such tool")

def test_expected_to_fail():
    assert second_time("expected")
    pytest.xfail("known")
"""
    ended = run(tmp_path, text, ["-n0"])
    assert (ended.code, ended.counts) == (1, "2 failed")
    assert len(ended.second_runs) == 2


@pytest.mark.slow
def test_when_many_tests_fail_none_runs_again(tmp_path: Path) -> None:
    text = f"""
@pytest.mark.parametrize("number", range({LIMIT + 1}))
def test_it(number):
    assert second_time(str(number))
"""
    ended = run(tmp_path, text, ["-n0"])
    assert (ended.code, ended.counts) == (1, f"{LIMIT + 1} failed")
    assert ended.second_runs == []


CRASH = "import os\ndef test_crash():\n    second_time() or os._exit(1)\n"
NEVER_FORGIVEN = {
    "a crashed worker": (CRASH, WORKERS, 1),
    "a run that stopped at its first failure": ("def test_left(): pass", ["-n0", "-x"], 1),
    "workers that stopped at the first failure": ("def test_left(): pass", [*WORKERS, "-x"], 2),
    "an error in the collection": (
        "if not second_time():\n    raise ImportError",
        ["-n0", "--continue-on-collection-errors"],
        1,
    ),
    "an error in the workers' collection": (
        "if second_time() or not second_time():\n    raise ImportError",
        WORKERS,
        1,
    ),
    "an interrupt": ("def test_it():\n    raise KeyboardInterrupt", ["-n0"], 2),
    "an exit with the code of failed tests": ("def test_it():\n    pytest.exit('', returncode=1)", ["-n0"], 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", NEVER_FORGIVEN)
def test_no_test_runs_again_after(tmp_path: Path, what: str) -> None:
    text, options, code = NEVER_FORGIVEN[what]
    ended = run(tmp_path, FLAKY + text, options)
    assert ended.code == code, ended.output
    assert ended.second_runs == []


@pytest.mark.slow
def test_no_test_runs_again_after_an_internal_error(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("def pytest_runtest_logfinish():\n    raise ValueError")
    ended = run(tmp_path, FLAKY, ["-n0"])
    assert ended.code == 3, ended.output
    assert ended.second_runs == []


@pytest.mark.slow
def test_a_second_run_has_the_options_of_the_first(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = rare")
    text = "pytestmark = pytest.mark.rare\n" + FLAKY
    ended = run(tmp_path, text, ["-n0", "-m", "rare"], PYTEST_ADDOPTS="-m 'not rare' -n2")
    assert (ended.code, ended.counts) == (0, "1 flaky"), ended.output


@pytest.mark.slow
@pytest.mark.parametrize(("variables", "again"), [({}, 1), ({"CI": "true"}, 2_000)], ids=["from its database", "in CI"])
def test_an_example_that_hypothesis_found_is_found_again(tmp_path: Path, variables: dict[str, str], again: int) -> None:
    """In CI Hypothesis has no database, and draws the same examples again."""
    rare = f"""
from hypothesis import given, settings, strategies

@settings(max_examples={again} if second_time() else 2_000)
@given(strategies.integers(0, 2**64))
def test_rare(number):
    assert number % 50 != 17
"""
    ended = run(tmp_path, rare, ["-n0"], ALL_PLUGINS, **variables)
    assert (ended.code, ended.counts) == (1, "1 failed"), ended.output
    assert ended.second_runs == ["test_it.py::test_rare"]


class Scripts:
    """The scripts that CI runs, in a project whose Python only says how it was called."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.said = ""
        (root / ".venv" / "bin").mkdir(parents=True)
        (root / "scripts").mkdir()
        (root / "scripts" / "chromium.sh").touch()
        for tool in ("ruff", "mypy"):
            self._add(tool, "")

    def _add(self, name: str, script: str) -> None:
        path = self._root / ".venv" / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def run(self, script: str, *codes: int) -> tuple[int, list[str]]:
        """Run a script whose runs of pytest end with these codes. Return its own code and the arguments of each run."""
        calls = self._root / "calls"
        calls.write_text("")
        answers = "".join(f"    {number}) exit {code} ;;\n" for number, code in enumerate(codes, 1))
        flaky = 'echo "- a day \\`a test\\`" >>"${PYTEST_FLAKY_LIST:-/dev/null}"'
        self._add(
            "python", f'[ "$2" = pytest ] || exit 0\necho "$@" >>calls\n{flaky}\ncase $(wc -l <calls) in\n{answers}esac'
        )
        copy = self._root / "scripts" / script
        copy.write_text((ROOT / "scripts" / script).read_text())
        apart = {name: value for name, value in os.environ.items() if name != "PYTEST_FLAKY_LIST"}
        done = subprocess.run(["sh", str(copy)], capture_output=True, text=True, env=apart, check=False)
        self.said = done.stderr
        return done.returncode, calls.read_text().splitlines()


@pytest.mark.parametrize(
    ("codes", "end"),
    [
        ((0, 0), 0),
        ((1, 0), 1),
        ((0, 1), 1),
        ((1, 1), 1),
        ((5, 0), 0),
        ((0, 5), 0),
        ((1, 5), 1),
        ((5, 1), 1),
        ((5, 5), 5),
        ((2,), 2),
        ((3,), 3),
        ((4,), 4),
        ((1, 3), 3),
    ],
)
def test_failed_tests_do_not_keep_the_tests_on_brokers_from_running(
    tmp_path: Path, codes: tuple[int, ...], end: int
) -> None:
    scripts = Scripts(tmp_path)
    code, calls = scripts.run("test.sh", *codes)
    assert code == end
    assert len(calls) == len(codes)
    assert scripts.said.endswith("test: flaky, add to tests/flaky.md:\n" + "- a day `a test`\n" * len(codes))
    assert "tests/unit" in calls[0]
    assert all("tests/integration" in call for call in calls[1:])


def test_every_run_of_ci_gives_failed_tests_a_second_run(tmp_path: Path) -> None:
    scripts = Scripts(tmp_path)
    calls = scripts.run("check.sh", 0)[1] + scripts.run("test.sh", 0, 0)[1]
    assert len(calls) == 3
    assert all(call.startswith("-m pytest -p tests.support.flaky ") for call in calls)
