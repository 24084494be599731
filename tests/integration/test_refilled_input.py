"""An input log that lost its tail and was filled again past the position: the job skips none of it silently.

An unclean election leaves such a log, and so does a power loss where a partition has one replica.
"""

import logging
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from onceward import CheckpointSettings, KafkaCluster, KafkaSink, KafkaSource
from onceward.common.errors import CheckpointFailedError, HaltedError
from onceward.common.links import Links
from onceward.connectors.interfaces import JobContext, Plan, ReplayRefusedError
from onceward.dev.kafka import LocalKafka
from onceward.dev.kafka.versions import broker_version
from onceward.driver.restarts import NO_RESTART
from onceward.protocol.events import CloseReason
from onceward.protocol.values import Document, JobName
from onceward.sources.kafka.client import new_consumer
from onceward.sources.kafka.control.leaders import Leaders
from onceward.sources.kafka.executor.reader import KafkaSplitReader, close_idle_clients
from onceward.sources.kafka.positions import Partition, skip_to
from tests.support.sparkless import SparklessPipeline
from tests.support.topics import Topics, transaction
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.timeout(300), pytest.mark.usefixtures("each_reader")]

KEPT, READ, PLANNED, NEW = 100, 200, 220, 300
"""Offsets of the cut log: where it starts to differ, the ends of what was read and planned, and its end afterwards."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """A topic of two partitions. The first one's log was cut below the end of what was read, and filled again."""

    servers: str
    topic: str
    before: Document
    """Positions before the lost records were read."""
    read: Document
    """Positions after the lost records."""
    ahead: Plan
    """A plan from before the cut that has not been read."""
    living: KafkaSource
    """A source that has planned before the cut."""
    ended: Partition
    """Three records and the marker of their commit; after an election, two aborted records and their marker."""

    def open(self) -> KafkaSource:
        return opened(self.servers, self.topic)

    def range(self, start: int, end: int, partition: int = 0) -> dict[str, Any]:
        return {"topic": self.topic, "partition": partition, "start": start, "end": end}


def opened(servers: str, topic: str) -> KafkaSource:
    source = KafkaSource(servers, [topic], start="earliest", adaptive=False)
    source.open(JobContext(job=JobName("refilled"), checkpoint_timeout=timedelta(minutes=1)))
    return source


def read_values(source: KafkaSource, plan: Plan) -> list[bytes | None]:
    columns, read = frozenset({"value"}), source.read()
    return [value for split in plan.splits for batch in read(split, columns) for value in batch["value"].to_pylist()]


def values(prefix: str, n: int) -> list[bytes | None]:
    return [f"{prefix}-{number}".encode() for number in range(n)]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    if broker_version() == "3.9":
        pytest.skip("Kafka 3.9 keeps the leader's epoch when a broker restarts")
    directory = tmp_path_factory.mktemp("kafka")
    with LocalKafka(directory=directory / "data", heap="256m") as kafka:
        topics = Topics(kafka.bootstrap_servers, "refilled")
        topic = topics.create("in", partitions=2)
        living = opened(topics.servers, topic)
        start = living.resolve()
        topics.fill(topic, values("old", KEPT), partition=0)
        ended = topics.create("ended")
        transaction(topics, ended, 3, commit=True)
        log = next(kafka.directory.rglob(f"{topic}-0"))
        before = living.plan(start).positions
        shutil.copytree(log, directory / "copy")
        topics.fill(topic, values("gone", READ - KEPT), partition=0)
        topics.fill(topic, values("whole", 50), partition=1)
        plan = living.plan(before)
        assert len(read_values(living, plan)) == READ - KEPT + 50
        topics.fill(topic, values("gone too", PLANNED - READ), partition=0)
        ahead = living.plan(plan.positions)

        kafka.kill()
        shutil.rmtree(log)
        shutil.copytree(directory / "copy", log)
        kafka.restart()
        topics.fill(topic, values("new", NEW - KEPT), partition=0)
        transaction(topics, ended, 2, commit=False)
        yield Scene(
            servers=kafka.bootstrap_servers,
            topic=topic,
            before=before,
            read=plan.positions,
            ahead=ahead,
            living=living,
            ended=Partition(ended, 0),
        )
        living.close()
        close_idle_clients()


def names_the_range(topic: str) -> str:
    return rf"{topic}-0 .* from offset {KEPT} .* {READ - KEPT} offsets \[{KEPT}, {READ}\)"


def test_positions_in_a_log_that_was_cut_and_refilled_are_not_continued(scene: Scene) -> None:
    source = scene.open()
    with pytest.raises(HaltedError, match=names_the_range(scene.topic)) as halted:
        source.restore(scene.read)
    assert f"{scene.topic}-1" not in str(halted.value)
    source.close()


def test_a_source_that_reads_on_notices_that_the_log_was_cut_and_refilled(scene: Scene) -> None:
    with pytest.raises(HaltedError, match=names_the_range(scene.topic)):
        scene.living.plan(scene.read)


def test_a_range_that_was_planned_before_the_log_was_cut_is_not_read_from_the_new_one(scene: Scene) -> None:
    with pytest.raises(CheckpointFailedError, match=rf"{scene.topic}-0 .* offset {PLANNED - 1} .* leader epoch"):
        read_values(scene.living, scene.ahead)


def test_a_reader_passes_markers_and_aborted_records_and_knows_their_leader_epoch(scene: Scene) -> None:
    consumer = new_consumer(
        KafkaSplitReader(cluster=KafkaCluster(scene.servers), group_id="g").settings(),
        logger=logging.getLogger("onceward.kafka"),
    )
    consumer.assign([TopicPartition(*scene.ended, 0)])
    assert consumer.positions([scene.ended])[0][0] < 0, "nothing is read yet"
    seen: list[tuple[int, int, int | None]] = []
    """The end of the records so far, and the client's position."""

    def at_end() -> bool:
        with consumer.fetched(1, 0.1) as got:
            position = consumer.positions([scene.ended])[0]
            seen.extend((int(records.offsets[-1]) + 1, *position) for records in got.records)
            return any(event.offset == 7 for event in got.events)

    wait_until(at_end, "the end of the partition")
    leaders = Leaders(KafkaCluster(scene.servers), Links())
    epochs = {at: leaders.epochs_before({scene.ended: at})[scene.ended] for at in (3, 7)}
    assert epochs[3] != epochs[7]
    assert seen[-1] == (3, 3, epochs[3])
    assert consumer.positions([scene.ended]) == [(7, epochs[7])]
    consumer.close()


def test_positions_before_the_cut_continue_with_the_current_records(scene: Scene) -> None:
    source = scene.open()
    source.restore(scene.before)
    plan = source.plan(scene.before)
    assert read_values(source, plan) == [*values("new", NEW - KEPT), *values("whole", 50)]
    source.restore(plan.positions)
    assert source.plan(plan.positions).records == 0
    source.close()


def test_a_range_that_was_cut_and_refilled_is_not_written_again_as_if_it_were_the_same(scene: Scene) -> None:
    source = scene.open()
    source.check_replay([scene.range(0, KEPT), scene.range(0, 50, partition=1)], scene.read)
    with pytest.raises(ReplayRefusedError, match=rf"{scene.topic}-0 .* from offset {KEPT} "):
        source.check_replay([scene.range(0, READ)], scene.read)
    source.close()


def test_an_operator_may_continue_at_the_position_in_the_refilled_log(scene: Scene) -> None:
    moved, former = skip_to(scene.read, scene.topic, 0, READ)
    assert former == READ
    source = scene.open()
    source.restore(moved)
    plan = source.plan(moved)
    assert read_values(source, plan) == values("new", NEW - KEPT)[READ - KEPT :]
    source.restore(plan.positions)
    source.close()


def test_positions_of_an_earlier_version_are_read_and_get_epochs_with_the_next_plan(scene: Scene) -> None:
    source = scene.open()
    earlier = _version_1(scene.read)
    source.restore(earlier)
    plan = source.plan(earlier)
    assert read_values(source, plan) == values("new", NEW - KEPT)[READ - KEPT :]
    cursors = plan.positions.body["topics"][scene.topic]["partitions"]
    assert cursors["0"]["epoch"] > 0
    source.close()


def _version_1(document: Document) -> Document:
    def without(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: without(inner) for key, inner in value.items() if key != "epoch"}
        return value

    return Document(kind=document.kind, version=1, body=without(document.body))


def test_a_job_halts_when_an_unclean_election_replaced_records_it_had_read(tmp_path: Path) -> None:
    """A follower that lacks the newest records becomes leader, and producers write past the job's position."""
    properties = {"min.insync.replicas": "1"}
    with LocalKafka(3, directory=tmp_path / "kafka", properties=properties, heap="256m") as kafka:
        topics = Topics(kafka.bootstrap_servers, "unclean")
        unclean = {"unclean.leader.election.enable": "true", "min.insync.replicas": "1"}
        given, out = topics.create("in", led_by=[1, 2], config=unclean), topics.create("out")
        topics.fill(given, values("old", KEPT))
        kafka.kill(2)
        topics.fill(given, values("gone", READ - KEPT))
        assert _job(topics, given, out, tmp_path).run() is CloseReason.FINISHED
        assert len(topics.values(out)) == READ
        kafka.kill(1)
        kafka.restart(2)
        wait_until(lambda: _leader(topics, given) == 2, "the broker that lacks records leads the partition")
        topics.fill(given, values("new", READ))
        with pytest.raises(HaltedError, match=names_the_range(given)):
            _job(topics, given, out, tmp_path).run()


def _leader(topics: Topics, topic: str) -> int:
    return int(topics.admin.list_topics(topic, timeout=30).topics[topic].partitions[0].leader)


def _job(topics: Topics, given: str, out: str, directory: Path) -> SparklessPipeline:
    return SparklessPipeline(
        job="unclean",
        source=KafkaSource(topics.servers, [given], start="earliest", end="latest"),
        sink=KafkaSink(topics.servers, topic=out),
        state_dir=directory / "state",
        settings=CheckpointSettings(interval="50ms"),
        restart=NO_RESTART,
    )
