"""The judge on the real broker: it fails broken protocols, names their records, and passes the correct protocol."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from onceward.common.killpoints import KillPoint
from onceward.operate.verify import Grade, History, Property, Verification, judge
from tests.checker.broken import BROKEN
from tests.support.processes import JobProcesses, bounded
from tests.support.recorder import Recorder
from tests.support.topics import Topics

pytestmark = [pytest.mark.kill, pytest.mark.timeout(300)]

RECORDS = 400
"""Per input partition."""


@dataclass(frozen=True, kw_only=True)
class Case:
    killed_at: KillPoint
    """The kill point, in the third checkpoint, that exposes the bug."""
    fails: frozenset[Property]
    says: str
    """Text that the evidence of each failed property contains."""


LOST, TWICE = Property.NOTHING_LOST, Property.NOTHING_TWICE
CASES = {
    "commits before the decision": Case(
        killed_at=KillPoint.DRIVER_AFTER_PRE_COMMIT, fails=frozenset({TWICE}), says="records too many"
    ),
    "aborts what has no answer": Case(
        killed_at=KillPoint.DRIVER_AFTER_DECISION, fails=frozenset({LOST}), says="records lost"
    ),
    "sweeps what is decided": Case(
        killed_at=KillPoint.DRIVER_AFTER_DECISION, fails=frozenset({LOST}), says="records lost"
    ),
    "forgets a committable": Case(
        killed_at=KillPoint.DRIVER_AFTER_SETTLE, fails=frozenset({LOST}), says="records lost"
    ),
    "votes for what was not written": Case(
        killed_at=KillPoint.DRIVER_AFTER_PRE_COMMIT, fails=frozenset({LOST}), says="records lost"
    ),
    "positions are one too low": Case(
        killed_at=KillPoint.DRIVER_AFTER_SETTLE, fails=frozenset({TWICE}), says="records too many"
    ),
    "reads everything again after a crash": Case(
        killed_at=KillPoint.DRIVER_AFTER_SETTLE, fails=frozenset({TWICE}), says="records too many"
    ),
}


def run(topics: Topics, job: str, directory: Path, bug: str, point: KillPoint) -> tuple[History, Verification]:
    """Run a bounded job whose driver is killed in its third checkpoint and started again."""
    source, sink = topics.create("in", 2), topics.create("out", 2)
    for partition in range(2):
        values: list[bytes | None] = [b"%d-%d" % (partition, number) for number in range(RECORDS)]
        topics.fill(source, values, partition=partition, key=b"key-%d" % partition)
    spec = {"bug": bug, "source_options": bounded(160), "settings": {"interval": "50ms", "num_retained": 1000}}
    program = "tests.checker.broken"
    with (
        JobProcesses(directory, job, topics.servers, source, sink, program=program, **spec) as here,
        Recorder(topics.servers, job=job, inputs=[source], outputs=[sink], file=directory / "history") as recorder,
    ):
        here.wait_for_kill(point, 3, here.driver(kill_at=[f"{point}:3"]))
        ended = here.driver()
        code = ended.wait()
        assert code == 0, f"the bug is noticed by the product itself: {ended.tail()}"
        history = recorder.finish(state_dir=directory / "state", whole_input=True, limit_s=5)
    return history, judge(history)


@pytest.mark.parametrize(
    "bug",
    [name if name == "aborts what has no answer" else pytest.param(name, marks=pytest.mark.crash) for name in CASES],
)
def test_a_broken_protocol_fails_and_its_records_are_named(topics: Topics, job: str, tmp_path: Path, bug: str) -> None:
    case = CASES[bug]
    _, verdict = run(topics, job, tmp_path, bug, case.killed_at)
    assert verdict.grade is Grade.FAIL, verdict.text()
    assert verdict.having(Grade.FAIL) >= case.fails, verdict.text()
    for name in case.fails:
        evidence = "; ".join(verdict.results[name].evidence)
        assert case.says in evidence, verdict.text()
        assert f"{topics.prefix}.in-" in evidence or f"{topics.prefix}.out-" in evidence, verdict.text()


@pytest.mark.parametrize(
    "point", [KillPoint.DRIVER_AFTER_DECISION, pytest.param(KillPoint.DRIVER_AFTER_PRE_COMMIT, marks=pytest.mark.crash)]
)
def test_the_unbroken_protocol_passes(topics: Topics, job: str, tmp_path: Path, point: KillPoint) -> None:
    history, verdict = run(topics, job, tmp_path, "nothing", point)
    assert verdict.grade is Grade.PASS, verdict.text()
    assert len(history.fed) == 2 * RECORDS


def test_every_bug_is_judged() -> None:
    assert {*CASES, "nothing"} == {*BROKEN}
