"""``make versions``: run each version's tests, keep its result, and write the table of the docs (README.md)."""

import argparse
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from onceward.dev.jars import cache_directory
from tests.versions.interpreters import NotOfferedError, interpreter
from tests.versions.matrix import AXES, GROUPS, OWN, Group, Result, results, tally
from tests.versions.table import fill

_ROOT = Path(__file__).resolve().parents[2]
_RESULTS = Path(__file__).with_name("results")
_PAGE = _ROOT / "docs" / "reference" / "supported.md"
_EXACT = {
    "kafka": "from onceward.dev.kafka.jars import jar_list as jars\n"
    "print(next(jar.version for jar in jars().jars if jar.name == 'kafka-clients'))",
    "python": "import platform; print(platform.python_version())",
    "pyspark": "import pyspark; print(pyspark.__version__)",
    "postgres": "from onceward.dev.postgres.binaries import jar_list as jars\n"
    "print(jars().jars[0].version.removesuffix('.0'))",
}
"""Programs that print which release runs."""


def main() -> int:
    """Return 0 only if every version passed that can be had here."""
    parser = argparse.ArgumentParser(prog="make versions", description="each other version beside the pinned rest")
    for axis, what in AXES.items():
        parser.add_argument(f"--{axis}", nargs="*", default=[], help=f"{what.title}; default: {' '.join(what.default)}")
    parser.add_argument("--group", nargs="*", choices=[*GROUPS, OWN], help="only these groups of tests")
    parser.add_argument("--table", action="store_true", help="only write the table from the kept results")
    parser.add_argument("--pytest", nargs=argparse.REMAINDER, default=[], help="more arguments; no result is kept")
    options = parser.parse_args()
    chosen = {axis: getattr(options, axis) for axis in AXES}
    if not any(chosen.values()) and not options.table:
        chosen = {axis: list(what.default) for axis, what in AXES.items()}
    bad = []
    for axis, versions in chosen.items():
        for version in versions:
            result = _run(axis, version, options.group or [*AXES[axis].groups], options.pytest)
            if not options.pytest:
                result.write(_RESULTS)
                fill(_PAGE, results(_RESULTS))
            for name, group in result.groups.items():
                if not group.good:
                    bad.append(f"{axis} {version} ({name})")
                    _say("\n  ".join([f"{name}: {group.passed} passed and these failed:", *group.failed]))
    fill(_PAGE, results(_RESULTS))
    if bad:
        _say(f"not passed: {', '.join(bad)}")
    return 1 if bad else 0


def _run(axis: str, version: str, groups: Sequence[str], more: Sequence[str]) -> Result:
    """Run some groups of a version; of the others, keep what is known of the same release."""
    _say(f"{AXES[axis].title} {version}")
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    try:
        python, variables = _environment(axis, version)
        exact = _exact(axis, python, variables)
    except NotOfferedError as error:
        _say(str(error))
        return Result(axis=axis, version=version, date=today, missing=str(error))
    tests = {name: tests for name, tests in AXES[axis].groups.items() if name in groups}
    before = [one for one in results(_RESULTS) if (one.axis, one.version, one.exact) == (axis, version, exact)]
    said = {name: group for one in before for name, group in one.groups.items()}
    said |= _tested(tests, AXES[axis].select, python, variables, more)
    return Result(axis=axis, version=version, exact=exact, date=today, groups=said)


def _environment(axis: str, version: str) -> tuple[Path, dict[str, str]]:
    """Return the Python with this version beside the pinned rest, and the variables for its tests."""
    chosen = {other.variable for other in AXES.values()}
    variables, venv = {name: value for name, value in os.environ.items() if name not in chosen}, _ROOT / ".venv"
    variables[AXES[axis].variable] = str(interpreter(version)) if axis == "python" else version
    if axis in ("python", "pyspark"):
        venv = cache_directory() / f"{axis}-{version}"
        variables["ONCEWARD_VENV"] = str(venv)
    last = ""
    command = ["sh", str(_ROOT / "scripts" / "setup.sh")]
    with subprocess.Popen(command, env=variables, stderr=subprocess.PIPE, text=True) as setup:
        for last in setup.stderr or ():
            print(last, end="", file=sys.stderr, flush=True)
    if setup.returncode != 0:
        raise NotOfferedError(last.strip() or "its environment could not be made")
    return venv / "bin" / "python", variables


def _exact(axis: str, python: Path, variables: dict[str, str]) -> str:
    said = subprocess.run([python, "-c", _EXACT[axis]], env=variables, cwd=_ROOT, capture_output=True, text=True)
    if said.returncode != 0:
        raise NotOfferedError(said.stderr.strip().rpartition("\n")[2])
    return said.stdout.strip()


def _tested(
    groups: Mapping[str, Sequence[str]], names: str, python: Path, variables: dict[str, str], more: Sequence[str]
) -> dict[str, Group]:
    tests = [selector for selectors in groups.values() for selector in selectors]
    select = ["-k", names] if names else []
    workers = (os.cpu_count() or 1) + 1  # they wait for leases and timeouts
    with tempfile.TemporaryDirectory() as directory:
        report = Path(directory, "report.xml")
        options = [
            "-q",
            f"-n{workers}",
            "--dist",
            "worksteal",
            "--hypothesis-profile=quick",
            f"--junitxml={report}",
            *select,
        ]
        code = subprocess.run([python, "-m", "pytest", *options, *tests, *more], env=variables, cwd=_ROOT).returncode
        try:
            found = tally(groups, report)
        except (OSError, ET.ParseError):
            found = {name: Group() for name in groups}
    if code != 0 and not (code == 1 and any(group.failed for group in found.values())):
        for group in found.values():
            group.failed.append(f"pytest ended with code {code}")
    return found


def _say(text: str) -> None:
    print(f"versions: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
