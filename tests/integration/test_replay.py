"""A lost transaction of a completed checkpoint is written again exactly, or the job halts or reports the loss."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from onceward.client.operators import OperatorClient
from onceward.common.killpoints import KillPoint
from onceward.protocol.answers import Verdict
from onceward.protocol.values import JobName, ParticipantName
from tests.support.processes import QUICK, JobProcesses, bounded, free_address
from tests.support.topics import (
    Topics,
    abort_with_the_brokers_tool,
    assert_exactly_once,
    fill,
    open_transactions_hold_back,
)
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.kill, pytest.mark.slow, pytest.mark.long, pytest.mark.timeout(600)]

PARTITIONS = 3


class Outage:
    """A job whose driver dies between a decision and its commit, and stays down until the brokers have aborted."""

    def __init__(self, topics: Topics, job: str, directory: Path, **spec: Any) -> None:
        self.topics = topics
        self.job = JobName(job)
        self.address = free_address()
        self.source, self.sink = topics.create("in", PARTITIONS), topics.create("out", PARTITIONS)
        fill(topics, self.source, 200)
        on_lost, timeout = spec.pop("on_lost", "replay"), spec.pop("transaction_timeout", "3s")
        self.here = JobProcesses(
            directory,
            job,
            topics.servers,
            self.source,
            self.sink,
            coordinator=self.address,
            source_options=bounded(90),
            sink_options={"transaction_timeout": timeout, "on_lost": on_lost},
            settings=QUICK,
            careless=True,
            **spec,
        )

    def __enter__(self) -> "Outage":
        self.here.coordinator(self.address)
        return self

    def __exit__(self, *_: object) -> None:
        self.here.__exit__()

    def die(self, point: KillPoint, count: int = 1) -> None:
        """Kill a driver at a point and wait until every transaction that it left has timed out."""
        self.here.wait_for_kill(point, count, self.here.driver(kill_at=[f"{point}:{count}"]))
        self.wait_for_the_timeout()

    def wait_for_the_timeout(self) -> None:
        wait_until(
            lambda: not any(open_transactions_hold_back(self.topics.servers, self.sink).values()), "all have timed out"
        )

    def finish(self) -> None:
        """Let a driver end the job. A longer transaction timeout keeps its writes from timing out on a busy machine."""
        self.here.spec["sink_options"] = {**self.here.spec["sink_options"], "transaction_timeout": "1min"}
        self.here.finish()

    def ends_with(self, code: int) -> str:
        """Run a driver that must end with ``code``; return its output."""
        driver = self.here.driver()
        assert driver.wait() == code, driver.tail(8000)
        return driver.tail(8000)


Begin = Callable[..., Outage]


@pytest.fixture
def begin(topics: Topics, job: str, tmp_path: Path) -> Begin:
    return partial(Outage, topics, job, tmp_path)


def test_a_transaction_that_timed_out_before_its_commit_is_replayed_once_and_in_order(begin: Begin) -> None:
    with begin() as outage:
        outage.die(KillPoint.DRIVER_AFTER_DECISION, 3)
        outage.finish()
        assert_exactly_once(outage.topics, outage.source, outage.sink)
        (replayed,) = outage.here.events("replayed")
        assert (replayed["slots"], replayed["written"]) == (PARTITIONS, 90)


def test_a_transaction_aborted_by_hand_in_one_partition_is_replayed(begin: Begin) -> None:
    with begin(transaction_timeout="1min") as outage:
        point = KillPoint.DRIVER_AFTER_DECISION
        outage.here.wait_for_kill(point, 3, outage.here.driver(kill_at=[f"{point}:3"]))
        abort_with_the_brokers_tool(outage.topics.servers, outage.sink, 1)
        outage.finish()
        assert_exactly_once(outage.topics, outage.source, outage.sink)
        assert outage.here.events("replayed"), "nothing was written again"


def test_a_driver_that_dies_anywhere_in_a_replay_and_a_second_loss_change_nothing(begin: Begin) -> None:
    with begin() as outage:
        outage.die(KillPoint.DRIVER_BETWEEN_END_TXN, 3)  # one of three is committed
        outage.die(KillPoint.DRIVER_BEFORE_REPLAY)
        outage.die(KillPoint.DRIVER_AFTER_REPLAY)
        outage.die(KillPoint.DRIVER_AFTER_DECISION)  # written again, completed, and lost again
        outage.die(KillPoint.DRIVER_AFTER_AMEND)  # lost again, unless the settler's thread commits before the kill
        outage.finish()
        assert_exactly_once(outage.topics, outage.source, outage.sink)
        replayed = [(event["slots"], event["amendment"]) for event in outage.here.events("replayed")]
        assert replayed in ([(2, 1), (2, 1), (2, 2)], [(2, 1), (2, 1), (2, 2), (2, 3)])


def test_a_sink_with_policy_halt_halts_and_names_the_records(begin: Begin) -> None:
    with begin(on_lost="halt") as outage:
        outage.die(KillPoint.DRIVER_AFTER_DECISION, 3)
        before = outage.topics.read(outage.sink)
        said = outage.ends_with(4)
        assert "lost: slot 0 of checkpoint" in said
        assert "records" in said
        assert outage.topics.read(outage.sink) == before


def test_a_sink_that_may_skip_continues_and_the_loss_is_reported_until_it_is_acknowledged(begin: Begin) -> None:
    with begin(on_lost="skip") as outage:
        outage.die(KillPoint.DRIVER_BETWEEN_END_TXN, 3)
        outage.finish()
        given = Counter(value for _, _, _, value in outage.topics.read(outage.source))
        seen = Counter(value for _, _, _, value in outage.topics.read(outage.sink))
        assert not seen - given
        with OperatorClient(outage.address) as people:
            assert people.job(outage.job).unacknowledged_losses == 2
            reports = people.losses(outage.job)
            ranges = [split for report in reports for split in report.document.body["inputs"]]
            lost = {
                b"%d-%d" % (split["partition"], offset)
                for split in ranges
                for offset in range(split["start"], split["end"])
            }
            assert (given - seen).keys() == lost, "other records are gone than the reports say"
            assert sum(report.document.body["records"] for report in reports) == len(lost)
            number, sink = reports[0].checkpoint, ParticipantName("sink")
            assert people.acknowledge_loss(outage.job, number, sink, "ops: known").verdict is Verdict.ACCEPTED
            assert people.job(outage.job).unacknowledged_losses == 0
            assert {report.acknowledgement for report in people.losses(outage.job, acknowledged=True)} == {"ops: known"}
