"""What each version is tested with, and the result of one version."""

import json
import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

__all__ = ["AXES", "GROUPS", "OWN", "Axis", "Group", "Result", "results", "tally"]

_INTEGRATION = "tests/integration"
GROUPS = {
    "kills": (f"{_INTEGRATION}/test_kill_points.py",),
    "preflight": (
        f"{_INTEGRATION}/test_doctor.py",
        f"{_INTEGRATION}/test_kafka_sink.py::test_a_safe_sink_has_only_warnings_about_a_single_broker",
        f"{_INTEGRATION}/test_kafka_sink.py::test_all_problems_are_found_together",
        f"{_INTEGRATION}/test_kafka_sink.py::test_a_topic_with_a_smaller_batch_limit_than_the_client_is_reported",
        f"{_INTEGRATION}/test_kafka_sink.py::test_a_transaction_timeout_below_checkpoint_plus_restart_is_refused_with_both_numbers",
        f"{_INTEGRATION}/test_kafka_source.py::test_the_preflight_names_missing_topics_and_broken_settings_together",
        f"{_INTEGRATION}/test_kafka_source.py::test_the_preflight_warns_of_topics_that_can_lose_confirmed_records",
        f"{_INTEGRATION}/test_pipeline.py::test_one_replica_is_warned_of_once_or_accepted_in_one_line",
        f"{_INTEGRATION}/test_pipeline.py::test_a_missing_topic_is_refused_before_anything_is_started",
        f"{_INTEGRATION}/test_pipeline.py::test_an_aggregation_is_refused_unless_it_is_wanted_per_checkpoint",
    ),
    "replay": (f"{_INTEGRATION}/test_replay.py",),
}
"""What every version runs, as files, folders, or single tests. PostgreSQL has its own."""

OWN = "own"
"""The group of tests that only one axis runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """One thing of which there are several versions. ``default``: the versions that are tested unless others are named;
    ``variable``: chooses one for a test; ``own``: tests that meet it."""

    title: str
    default: tuple[str, ...]
    variable: str
    own: tuple[str, ...]
    select: str = ""
    """The own tests by name, as pytest's ``-k``; then nothing else runs."""

    @property
    def groups(self) -> dict[str, tuple[str, ...]]:
        """The tests of each group."""
        return {OWN: self.own} if self.select else {**GROUPS, OWN: self.own}


AXES = {
    "kafka": Axis(
        title="Kafka brokers",
        default=("3.9", "4.0", "4.3"),
        variable="ONCEWARD_KAFKA",
        own=tuple(
            f"{_INTEGRATION}/test_{name}.py"
            for name in (
                "transaction_versions",
                "local_kafka",
                "control_plane_contract",
                "transactions",
                "claims",
                "committer",
                "expiry",
                "sweep",
                "zombies",
                "orphans",
                "forged_committables",
                "kafka_sink",
                "kafka_source",
                "native_reader",
                "refilled_input",
            )
        ),
    ),
    "python": Axis(
        title="Python",
        default=("3.12", "3.13", "3.14"),
        variable="PYTHON",
        own=(
            *(
                f"tests/unit/{part}"
                for part in (
                    "client",
                    "connections",
                    "driver",
                    "operate",
                    "protocol",
                    "service",
                    "sinks",
                    "sources",
                    "store",
                )
            ),
            "tests/scenarios",
            f"{_INTEGRATION}/test_pipeline.py",
        ),
    ),
    "pyspark": Axis(
        title="PySpark",
        default=("4.0.5", "4.1.4", "4.2.1"),
        variable="ONCEWARD_PYSPARK",
        own=(
            "tests/unit/driver",
            *(
                f"{_INTEGRATION}/test_{name}.py"
                for name in ("pipeline", "reading", "streaming_sink", "stream_examples")
            ),
        ),
    ),
    "postgres": Axis(
        title="PostgreSQL",
        default=("14", "15", "16", "18"),
        variable="ONCEWARD_POSTGRES",
        own=(
            "tests/unit/store",
            "tests/unit/protocol/test_store_machine.py",
            "tests/unit/service",
            "tests/unit/sinks/postgres",
            "tests/unit/traces",
            f"{_INTEGRATION}/test_local_postgres.py",
            f"{_INTEGRATION}/test_leaders.py",
        ),
        select="postgres or leader or lead or term",
    ),
}


@dataclass(kw_only=True, slots=True)
class Group:
    """What the tests of one group said. ``skipped``: how many for each reason."""

    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: dict[str, int] = field(default_factory=dict)

    @property
    def good(self) -> bool:
        """Whether something ran and nothing failed."""
        return self.passed > 0 and not self.failed


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """One version. ``exact``: the release of it that ran; ``missing``: why nothing ran, if nothing could."""

    axis: str
    version: str
    exact: str = ""
    date: str
    groups: Mapping[str, Group] = field(default_factory=dict)
    missing: str = ""

    def write(self, directory: Path) -> None:
        """Keep it as ``AXIS-VERSION.json``."""
        text = json.dumps(asdict(self), indent=1, sort_keys=True)
        (directory / f"{self.axis}-{self.version}.json").write_text(text + "\n")


def results(directory: Path) -> list[Result]:
    """Return the kept results."""
    found = []
    for path in directory.glob("*.json"):
        read = json.loads(path.read_text())
        read["groups"] = {name: Group(**group) for name, group in read["groups"].items()}
        found.append(Result(**read))
    return found


def tally(groups: Mapping[str, Collection[str]], report: Path) -> dict[str, Group]:
    """Sort the tests of a pytest report in JUnit's format into groups; a test belongs to the first that selects it.
    Raises OSError or ParseError if there is no whole report, and StopIteration for a test of no group."""
    found = {name: Group() for name in groups}
    for test, outcome, why in _cases(report):
        group = found[next(name for name, selectors in groups.items() if _selects(selectors, test))]
        if outcome == "passed":
            group.passed += 1
        elif outcome == "skipped":
            group.skipped = dict(Counter(group.skipped) + Counter([why]))
        else:
            group.failed.append(test)
    return found


def _cases(report: Path) -> Iterator[tuple[str, str, str]]:
    """Yield (test, passed, skipped or failed, the reason of a skip)."""
    for case in ET.parse(report).iter("testcase"):
        module, name = case.get("classname", ""), case.get("name", "")
        test = f"{module.replace('.', '/')}.py::{name}" if module else name
        children = {child.tag: child for child in case}
        if "failure" in children or "error" in children:
            yield test, "failed", ""
        elif "skipped" in children:
            yield test, "skipped", (children["skipped"].get("message") or "").removeprefix("Skipped: ")
        else:
            yield test, "passed", ""


def _selects(selectors: Collection[str], test: str) -> bool:
    return any(re.match(rf"{re.escape(selector)}($|\[|::|/)", test) for selector in selectors)
