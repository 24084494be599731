"""One job, one store: whatever happens to the store, a second one writes nothing unless a person allows it."""

import re
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from onceward.common.errors import ClaimChangedError, ExitCode, FencedError
from onceward.common.killpoints import KillPoint
from onceward.protocol.values import CheckpointId, Claim, Generation, JobName
from onceward.sinks.kafka.control.system import KafkaSystem
from tests.integration.test_zombies import asleep
from tests.support.processes import JobProcesses, Starter, bounded
from tests.support.sink_job import SinkJob
from tests.support.topics import Topics, assert_exactly_once, open_transactions_hold_back
from tests.support.waiting import wait_until

PARTITIONS = 2


@pytest.fixture
def here(topics: Topics, job_processes: Starter) -> Iterator[JobProcesses]:
    source, sink = topics.create("in", PARTITIONS), topics.create("out", PARTITIONS)
    with job_processes(source, sink, source_options=bounded(20), settings={"interval": "100ms"}) as made:
        yield made


def fill(topics: Topics, here: JobProcesses, name: str) -> None:
    for partition in range(PARTITIONS):
        values: list[bytes | None] = [b"%s-%d-%d" % (name.encode(), partition, number) for number in range(20)]
        topics.fill(here.spec["source"], values, partition=partition, key=b"key-%d" % partition)


def refused(here: JobProcesses, topics: Topics) -> str:
    """Start a driver that must be refused and write nothing; return its output."""
    before = topics.read(here.spec["sink"], committed=False)
    driver = here.driver()
    assert driver.wait() != 0
    assert topics.read(here.spec["sink"], committed=False) == before
    return driver.tail()


def test_an_older_backup_of_the_store_is_refused(here: JobProcesses, topics: Topics, tmp_path: Path) -> None:
    fill(topics, here, "first")
    here.finish()
    shutil.copytree(tmp_path / "state", tmp_path / "backup")
    fill(topics, here, "second")
    here.spec["source_options"]["end"] = None
    running = here.driver()
    wait_until(lambda: len(topics.read(here.spec["sink"])) == 4 * 20, "the second part is copied")
    running.end()
    shutil.rmtree(tmp_path / "state")
    shutil.copytree(tmp_path / "backup", tmp_path / "state")
    assert "checkpoint" in refused(here, topics)
    assert_exactly_once(topics, here.spec["source"], here.spec["sink"])


def test_a_wiped_store_with_open_transactions_is_refused_and_they_are_named_and_kept(
    here: JobProcesses, topics: Topics, tmp_path: Path, job: str
) -> None:
    fill(topics, here, "first")
    killed = here.driver(kill_at=[f"{KillPoint.DRIVER_AFTER_DECISION}:1"])
    here.wait_for_kill(KillPoint.DRIVER_AFTER_DECISION, 1, killed)
    shutil.rmtree(tmp_path / "state")
    committer = KafkaSystem.open(topics.servers)
    try:
        open_before = committer.transactions(JobName(job))
        # perhaps also one of the next checkpoint, which does not wait for the commits
        assert [each.details["receipt"] for each in open_before].count("written") >= PARTITIONS
        refusal = refused(here, topics)
        assert "belongs to store" in refusal
        assert [each.handle for each in committer.transactions(JobName(job))] == [each.handle for each in open_before]
        named = re.search(rf"onceward (adopt {job} --claim \S+) --reason WHY", refusal)
        assert named is not None, refusal
        here.command(*named[1].split(), "--reason", "a test", "--yes", "--state-dir", here.spec["state_dir"])
        killed = here.driver(kill_at=[f"{KillPoint.DRIVER_BEFORE_CLAIM}:1"])
        here.wait_for_kill(KillPoint.DRIVER_BEFORE_CLAIM, 1, killed)
        here.finish()
        assert list(committer.transactions(JobName(job))) == []
    finally:
        committer.close()
    assert not any(open_transactions_hold_back(topics.servers, here.spec["sink"]).values())
    assert_exactly_once(topics, here.spec["source"], here.spec["sink"])


def test_a_claim_that_another_store_or_a_newer_generation_took_is_not_renewed(topics: Topics, job: str) -> None:
    with (
        SinkJob(topics.servers, job, topic=topics.create("out")) as first,
        SinkJob(topics.servers, job, topic=topics.create("other")) as second,
    ):
        ours = Claim(store_id="first", generation=Generation(1), completed=CheckpointId(1), holder="ours")
        for taken in (
            replace(ours, store_id="second"),
            replace(ours, generation=Generation(2)),
            replace(ours, holder="a driver of a copy of the store"),
        ):
            first.sink.begin_generation(Generation(1))
            second.sink.begin_generation(taken.generation)
            first.take_claim(ours, first.read_claim())
            assert first.own.renew_claim(ours)
            second.take_claim(taken, ours)
            with pytest.raises(FencedError, match="taken over"):
                first.own.renew_claim(replace(ours, completed=CheckpointId(2)))
            second.wait_for_claim(taken)
            assert second.own.renew_claim(replace(taken, completed=CheckpointId(2))), "a late renewal disturbed it"
            with pytest.raises(ClaimChangedError, match="taken over"):
                first.take_claim(ours, ours)
            last = replace(taken, completed=CheckpointId(3))
            assert second.own.renew_claim(last)
            second.wait_for_claim(last)


@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.parametrize(
    "sleeps", [KillPoint.DRIVER_BEFORE_OPEN, KillPoint.DRIVER_AFTER_OPEN, KillPoint.DRIVER_BEFORE_CLAIM], ids=str
)
def test_a_driver_that_slept_before_it_claimed_the_job_does_not_take_it_from_another_store(
    here: JobProcesses, topics: Topics, tmp_path: Path, sleeps: KillPoint
) -> None:
    fill(topics, here, "first")
    paused = asleep(here.driver(kill_at=[f"{sleeps}:1:stop"]))
    here.spec["state_dir"] = str(tmp_path / "other")
    here.finish()
    assert_exactly_once(topics, here.spec["source"], here.spec["sink"])
    paused.send(signal.SIGCONT)
    assert paused.wait() in (ExitCode.FENCED, ExitCode.USAGE), paused.tail()
    assert_exactly_once(topics, here.spec["source"], here.spec["sink"])
