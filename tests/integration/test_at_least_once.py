"""Without transactions nothing is lost, a crash may repeat records, and the way back to exactly once is safe."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from onceward.common.killpoints import KillPoint
from onceward.protocol.values import Claim
from onceward.sinks.kafka.errors import DeliveryError
from tests.support.processes import QUICK, JobProcesses, Starter, bounded
from tests.support.sink_job import SinkJob, batch
from tests.support.topics import Topics, assert_exactly_once, fill, open_transactions_hold_back

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).resolve().parents[2]
RECORDS = 400
"""Per input partition, of three."""
PER_CHECKPOINT = 150


class Job:
    """A bounded copy whose driver is a process; each run may use another delivery."""

    def __init__(self, topics: Topics, job: str, here: JobProcesses) -> None:
        self.topics, self.job, self.here = topics, job, here
        self.source, self.sink = here.spec["source"], here.spec["sink"]
        fill(topics, self.source, RECORDS)

    def dies(self, delivery: str, point: KillPoint, count: int) -> None:
        self.here.spec["sink_options"] = {"delivery": delivery}
        self.here.wait_for_kill(point, count, self.here.driver(kill_at=[f"{point}:{count}"]))

    def finishes(self, delivery: str) -> None:
        self.here.spec["sink_options"] = {"delivery": delivery}
        self.here.finish()

    def copies(self) -> Counter[bytes | None]:
        """Number of copies per record. Every input record must be in the output."""
        found = Counter(self.topics.values(self.sink))
        given = Counter(self.topics.values(self.source))
        assert found.keys() == given.keys(), "something is lost, or was not written by the test"
        return found

    def claim(self) -> Claim:
        with SinkJob(self.topics.servers, self.job, topic=self.sink) as seen:
            assert not any(open_transactions_hold_back(self.topics.servers, self.sink).values())
            claim = seen.read_claim()
        assert claim is not None
        return claim

    def verified(self, *more: str) -> tuple[int, dict[str, Any]]:
        about = ["--job", self.job, "--state-dir", self.here.spec["state_dir"], "--servers", self.topics.servers]
        ran = subprocess.run(
            [
                *(sys.executable, "-m", "onceward.operate", "verify", *about, "--json"),
                *("--input", self.source, "--output", self.sink, *more),
            ],
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.stdout, ran.stderr
        return ran.returncode, json.loads(ran.stdout)


@pytest.fixture
def copying(topics: Topics, job_processes: Starter, job: str) -> Any:
    with job_processes(
        topics.create("in", 3),
        topics.create("out", 3),
        source_options=bounded(PER_CHECKPOINT),
        settings={**QUICK, "num_retained": 1000},
    ) as here:
        yield Job(topics, job, here)


def test_a_crash_between_writing_and_deciding_repeats_that_checkpoint_and_loses_nothing(copying: Job) -> None:
    copying.dies("at_least_once", KillPoint.DRIVER_AFTER_VOTES, 3)
    copying.finishes("at_least_once")
    twice = [value for value, count in copying.copies().items() if count == 2]
    assert copying.copies().total() == 3 * RECORDS + PER_CHECKPOINT, "other records than the lost checkpoint's repeat"
    assert len(twice) == PER_CHECKPOINT
    assert {one["transactions"] for one in copying.here.events("pre-committed")} == {0}
    settled = [one["checkpoint"] for one in copying.here.events("settled")]
    assert len(settled) >= 3 * RECORDS / PER_CHECKPOINT - 1, "checkpoints without a transaction are settled too"
    assert copying.claim().completed == settled[-1], "the claim follows"
    code, said = copying.verified("--at-least-once")
    assert (code, said["verdict"]) == (0, "PASS"), said
    assert "nothing lost" in said["properties"]
    code, said = copying.verified()
    assert (code, said["properties"]["nothing twice"]["verdict"]) == (1, "FAIL"), said


def test_a_job_may_change_to_at_least_once_over_decided_and_undecided_transactions(copying: Job) -> None:
    """Generation 1 leaves one checkpoint completed but not committed, and the next one written but not decided."""
    copying.dies("exactly_once", KillPoint.DRIVER_AFTER_DECISION, 2)
    assert any(open_transactions_hold_back(copying.topics.servers, copying.sink).values())
    copying.finishes("at_least_once")
    assert_exactly_once(copying.topics, copying.source, copying.sink)
    last = copying.here.events("recovered")[-1]
    assert last["resumed"] > 0, "nothing was left to commit"
    assert copying.claim().generation == 2


def test_a_job_may_change_back_to_exactly_once_and_repeats_no_more(copying: Job) -> None:
    copying.dies("at_least_once", KillPoint.DRIVER_AFTER_VOTES, 3)
    copying.dies("exactly_once", KillPoint.DRIVER_AFTER_VOTES, 2)
    copying.finishes("exactly_once")
    assert copying.copies().total() == 3 * RECORDS + PER_CHECKPOINT
    assert {one["transactions"] for one in copying.here.events("pre-committed")} > {0}
    assert copying.claim().generation == 3


def test_a_refused_record_casts_no_vote_and_spoils_no_later_checkpoint(topics: Topics, job: str) -> None:
    out = topics.create("out", 1, config={"max.message.bytes": "2000"})
    with SinkJob(topics.servers, job, topic=out, delivery="at_least_once") as sink:
        assert not sink.findings or all(one.severity != "error" for one in sink.findings)
        first = sink.write(1, batch(b"a", b"b"))
        assert (first.records, first.bytes, first.body) == (2, 2, {})
        with pytest.raises(DeliveryError, match="there twice"):
            sink.write(2, batch(b"c", b"x" * 5000))
        again = sink.write(3, batch(b"d"), batch(b"e"))
        empty = sink.write(3, slot=1)
        assert (again.records, empty.records) == (2, 0)
        assert sink.pre_commit(3, [again, empty]) == ()
    values = topics.values(out)
    assert [value for value in values if value != b"c"] == [b"a", b"b", b"d", b"e"]


def test_an_open_transaction_of_an_earlier_run_is_aborted_by_one_without_transactions(topics: Topics, job: str) -> None:
    out = topics.create("out", 1)
    with SinkJob(topics.servers, job, topic=out) as earlier:
        name, _producer = earlier.open_transaction(out)
        with SinkJob(topics.servers, job, generation=2, topic=out, delivery="at_least_once") as now:
            vote = now.write(5, batch(b"new"))
            assert now.system().leftovers(now.job) == [name]
            assert now.pre_commit(5, [vote]) == ()
            assert now.system().leftovers(now.job) == []
    assert topics.values(out) == [b"new"]


def test_the_transaction_timeout_does_not_matter_without_transactions(topics: Topics, job: str) -> None:
    out = topics.create("out", 1)
    for delivery, refused in (("exactly_once", True), ("at_least_once", False)):
        with SinkJob(topics.servers, job, topic=out, delivery=delivery, transaction_timeout="30s") as sink:
            found = [one.message for one in sink.findings if one.severity == "error"]
            assert any("transaction timeout" in message for message in found) is refused
