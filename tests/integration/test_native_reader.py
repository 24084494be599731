"""The reader of our own on a real broker: the same records as librdkafka's, in every form and through failures."""

import itertools
import logging
import random
import select
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (
    NewPartitions,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from onceward import KafkaCluster
from onceward.common.errors import CheckpointFailedError
from onceward.connections.sockets import requests
from onceward.connections.sockets.requests import Api, Spoken
from onceward.dev.kafka import LocalKafka
from onceward.dev.kafka.versions import broker_version
from onceward.sources.kafka.client import ArrowConsumer, Consumer, Fetched
from onceward.sources.kafka.executor.clients import close_idle_clients
from onceward.sources.kafka.executor.columns import COLUMNS, HEADERS
from onceward.sources.kafka.executor.reader import KafkaSplitReader
from tests.integration.test_quota import quota
from tests.support.shared_kafka import SharedKafka
from tests.support.topics import Topics, transaction, values, wait_for, wait_for_decided_ends
from tests.support.waiting import wait_until

native = pytest.importorskip("onceward.sources.kafka.client.native.consumer", exc_type=ImportError)

pytestmark = pytest.mark.timeout(300)

ALL = (*COLUMNS, HEADERS)
LOGGER = logging.getLogger("onceward.kafka")
CLIENTS: Mapping[str, Callable[..., Consumer]] = {"native": native.NativeConsumer, "librdkafka": ArrowConsumer}
Row = dict[str, Any]


def settings(cluster: KafkaCluster, **more: str) -> dict[str, Any]:
    reader = KafkaSplitReader(cluster=cluster, group_id="g")
    return {**reader.settings(), **{key.replace("_", "."): value for key, value in more.items()}}


def read(
    client: str, servers: "str | KafkaCluster", splits: Sequence[Row], monkeypatch: pytest.MonkeyPatch
) -> list[Row]:
    """Read ranges as a task does."""
    monkeypatch.setenv("ONCEWARD_KAFKA_READER", client)
    close_idle_clients()
    reader = KafkaSplitReader(cluster=KafkaCluster.of(servers), group_id="g", names=ALL)
    rows: list[Row] = []
    for batch in reader({"ranges": splits}, frozenset(ALL)):
        batch.validate(full=True)
        rows += batch.to_pylist()
    close_idle_clients()
    return sorted(rows, key=lambda row: (row["topic"], row["partition"]))  # stable: in order within a partition


def ends(topics: Topics, topic: str, count: int) -> dict[int, tuple[int, int]]:
    wait_for_decided_ends(topics.servers)
    with closing(native.NativeConsumer(settings(KafkaCluster(topics.servers)), logger=LOGGER)) as consumer:
        found = {p: consumer.get_watermark_offsets(TopicPartition(topic, p), 10) for p in range(count)}
    with closing(ArrowConsumer(settings(KafkaCluster(topics.servers)), logger=LOGGER)) as other:
        assert found == {p: other.get_watermark_offsets(TopicPartition(topic, p), 10) for p in range(count)}
    return found


def records_of(seed: int, count: int) -> Iterator[dict[str, Any]]:
    """Keys, values, times and headers of every kind."""
    chance = random.Random(seed)
    for number in range(count):
        headers = [(f"h{n}", None if n == 2 else b"%d" % number) for n in range(number % 4)]
        yield {
            "key": (None, b"", b"k%d" % chance.randrange(100))[min(2, number % 9)],
            "value": (None, b"", b'{"n":%d}' % number + bytes(chance.choice((0, 20, 1_000))))[min(2, number % 11)],
            "timestamp": 1_700_000_000_000 + 3 * number - number % 5,
            "headers": headers or None,
        }


def produce(
    topics: Topics,
    topic: str,
    outcome: str,
    seed: int,
    *,
    compression: str = "none",
    count: int = 900,
    partitions: int = 2,
    keyed: bool = False,
) -> None:
    """``outcome``: plain, or that of a transaction: commit or abort. ``keyed``: leave out records without a key."""
    config: dict[str, Any] = {"compression.type": compression, "batch.size": 30_000}
    if outcome != "plain":
        config["transactional.id"] = f"{topic}-tx"
    producer = Producer({"bootstrap.servers": topics.servers, "log_level": 0, "linger.ms": 20, **config})
    if outcome != "plain":
        producer.init_transactions(30)
        producer.begin_transaction()
    for number, record in enumerate(records_of(seed, count)):
        if not keyed or record["key"] is not None:
            producer.produce(topic, partition=number % partitions, **record)
    assert producer.flush(30) == 0
    if outcome == "commit":
        producer.commit_transaction(30)
    if outcome == "abort":
        producer.abort_transaction(30)


@pytest.mark.parametrize("times", ["CreateTime", pytest.param("LogAppendTime", marks=pytest.mark.crash)])
@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_both_clients_read_the_same_records_in_every_compression_and_range(
    topics: Topics, compression: str, times: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.create("in", 2, config={"message.timestamp.type": times, "retention.ms": "-1"})
    for seed, outcome in enumerate(["plain", "abort", "commit", "abort", "commit", "plain"]):
        produce(topics, topic, outcome, seed, compression=compression)
    limits = ends(topics, topic, 2)
    cuts = {p: sorted({0, end // 7 + 3, end // 2 + 1, end // 2 + 2, end}) for p, (_, end) in limits.items()}
    splits = [
        {"topic": topic, "partition": p, "start": start, "end": end}
        for p in limits
        for start, end in itertools.combinations(cuts[p], 2)
    ]
    for split in splits:
        found, expected = (read(client, topics.servers, [split], monkeypatch) for client in CLIENTS)
        assert found == expected
    whole = [{"topic": topic, "partition": p, "start": 0, "end": end} for p, (_, end) in limits.items()]
    assert len(read("native", topics.servers, whole, monkeypatch)) == 4 * 900


def test_times_that_no_clock_shows_are_read_alike(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = topics.create("in", config={"retention.ms": "-1", "message.timestamp.before.max.ms": str(2**63 - 1)})
    producer = Producer({"bootstrap.servers": topics.servers, "log_level": 0})
    for time_ in (-1, 1, -5_000, 1_700_000_000_000):
        producer.produce(topic, b"x", timestamp=time_)
    assert producer.flush(30) == 0
    split = {"topic": topic, "partition": 0, "start": 0, "end": 4}
    found, expected = (read(client, topics.servers, [split], monkeypatch) for client in CLIENTS)
    assert found == expected
    assert len(found) == 4


@pytest.mark.parametrize(
    "version",
    [
        # those that change the form of what is read here; `make crash` has all
        *(4, 7, 12, 13, 18),
        *(pytest.param(version, marks=pytest.mark.crash) for version in (5, 8, 9, 10, 11, 14, 15, 16, 17)),
    ],
)
def test_every_version_of_fetch_reads_the_same(topics: Topics, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = topics.create("in", 2)
    for seed, outcome in enumerate(["plain", "abort", "commit"]):
        produce(topics, topic, outcome, seed, compression="lz4" if version >= 10 else "none")
    splits = [
        {"topic": topic, "partition": p, "start": 5, "end": end} for p, (_, end) in ends(topics, topic, 2).items()
    ]
    expected = read("librdkafka", topics.servers, splits, monkeypatch)
    old = version < 13
    speaks = {
        **requests._SPOKEN,
        Api.FETCH: Spoken(4, version, 12),  # an older broker has no 18
        Api.METADATA: Spoken(5, 5 if version < 9 else 9 if old else 12, 9),
        Api.LIST_OFFSETS: Spoken(2, 2 if old else 7, 6),
    }
    monkeypatch.setattr(requests, "_SPOKEN", speaks)
    assert read("native", topics.servers, splits, monkeypatch) == expected
    assert len(expected) == 2 * 900 - 10


def test_a_broker_without_topic_ids_is_asked_by_name(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = topics.create("in")
    topics.fill(topic, values(5))
    monkeypatch.setattr(requests, "_SPOKEN", {**requests._SPOKEN, Api.METADATA: Spoken(5, 9, 9)})
    split = {"topic": topic, "partition": 0, "start": 0, "end": 5}
    assert [row["value"] for row in read("native", topics.servers, [split], monkeypatch)] == values(5)


def test_a_broker_that_speaks_no_common_version_fails_the_read(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = topics.create("in")
    topics.fill(topic, values(5))
    monkeypatch.setattr(requests, "_SPOKEN", {**requests._SPOKEN, Api.FETCH: Spoken(99, 99, 12)})
    split = {"topic": topic, "partition": 0, "start": 0, "end": 5}
    with pytest.raises(KafkaException, match="FETCH in versions"):
        read("native", topics.servers, [split], monkeypatch)


# -- what a client reports beside the records


@pytest.fixture(params=CLIENTS)
def consumer(request: pytest.FixtureRequest, topics: Topics) -> Iterator[Consumer]:
    with closing(CLIENTS[request.param](settings(KafkaCluster(topics.servers)), logger=LOGGER)) as made:
        yield made


def collected(consumer: Consumer, enough: Callable[[Fetched], bool], most: int = 1000) -> list[Any]:
    """Records and events, until one call is enough: (partition, first and next offset) or (partition, code, offset)."""
    seen: list[Any] = []

    def came() -> bool:
        with consumer.fetched(most, 0.1) as got:
            seen.extend((r.partition, int(r.offsets[0]), int(r.offsets[-1]) + 1) for r in got.records)
            seen.extend((e.partition, e.error.name(), e.offset) for e in got.events)
            return enough(got)

    wait_until(came, "the consumer has reported what it should")
    return seen


def test_the_end_of_a_partition_is_reported_once_behind_all_that_it_passes(topics: Topics, consumer: Consumer) -> None:
    topic = topics.create("in")
    transaction(topics, topic, 3, commit=True)
    transaction(topics, topic, 5, commit=False)
    wait_for_decided_ends(topics.servers)
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert consumer.positions([(topic, 0)])[0][0] < 0
    seen = collected(consumer, lambda got: bool(got.events))
    assert seen == [(0, 0, 3), (0, "_PARTITION_EOF", 10)]
    assert consumer.known_end(topic, 0) == 10
    assert consumer.positions([(topic, 0)])[0][0] == 10
    topics.fill(topic, values(2))
    assert collected(consumer, lambda got: bool(got.events)) == [(0, 10, 12), (0, "_PARTITION_EOF", 12)]
    consumer.assign([TopicPartition(topic, 0, 12)])
    assert collected(consumer, lambda got: bool(got.events)) == [(0, "_PARTITION_EOF", 12)]


def test_an_open_transaction_ends_what_is_read(topics: Topics, consumer: Consumer) -> None:
    topic = topics.create("in")
    topics.fill(topic, values(3))
    producer = Producer({"bootstrap.servers": topics.servers, "log_level": 0, "transactional.id": topic})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"open")
    assert producer.flush(30) == 0
    topics.fill(topic, values(4))
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert collected(consumer, lambda got: bool(got.events)) == [(0, 0, 3), (0, "_PARTITION_EOF", 3)]
    producer.commit_transaction(30)
    seen = collected(consumer, lambda got: bool(got.events))
    assert seen == [(0, 3, 8), (0, "_PARTITION_EOF", 9)]


@pytest.mark.parametrize("start", [2, 999])
def test_an_offset_that_is_not_in_the_log_is_reported_with_its_place(
    topics: Topics, consumer: Consumer, start: int
) -> None:
    topic = topics.create("in")
    topics.fill(topic, values(9))
    wait_for(next(iter(topics.admin.delete_records([TopicPartition(topic, 0, 5)]).values())))
    consumer.assign([TopicPartition(topic, 0, start)])
    seen = collected(consumer, lambda got: bool(got.events))
    assert [(partition, name) for partition, name, _ in seen] == [(0, "_AUTO_OFFSET_RESET")]
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), 10) == (5, 9)


def test_an_unknown_topic_has_an_error_and_a_known_one_none(topics: Topics, consumer: Consumer) -> None:
    topic = topics.create("in")
    assert consumer.topic_error(topic, 10) is None
    error = consumer.topic_error(f"{topic}-missing", 10)
    assert error is not None
    assert error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART


def test_a_partition_that_is_created_later_is_read(topics: Topics, consumer: Consumer) -> None:
    topic = topics.create("in")
    topics.fill(topic, values(2))
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert collected(consumer, lambda got: bool(got.events)) == [(0, 0, 2), (0, "_PARTITION_EOF", 2)]
    wait_for(topics.admin.create_partitions([NewPartitions(topic, 2)])[topic])
    consumer.assign([TopicPartition(topic, 1, 0)])
    topics.fill(topic, values(3), partition=1)
    assert (1, 0, 3) in collected(consumer, lambda got: any(e.offset == 3 for e in got.events))


def test_a_wake_from_another_thread_ends_a_wait_and_one_before_it_is_kept(topics: Topics, consumer: Consumer) -> None:
    topic = topics.create("in")
    consumer.assign([TopicPartition(topic, 0, 0)])
    collected(consumer, lambda got: bool(got.events))
    consumer.wake()
    began = time.monotonic()
    with consumer.fetched(10, 100.0) as got:
        assert not got.records
    waking = threading.Timer(0.1, consumer.wake)
    waking.start()
    with consumer.fetched(10, 100.0) as got:
        assert not got.records
    assert time.monotonic() - began < 60


def test_a_partition_that_is_left_sends_nothing_more_and_the_others_do(topics: Topics, consumer: Consumer) -> None:
    topic = topics.create("in", 2)
    for partition in (0, 1):
        topics.fill(topic, values(2), partition=partition)
    consumer.assign([TopicPartition(topic, partition, 0) for partition in (0, 1)])
    ended: set[int] = set()

    def both(got: Fetched) -> bool:
        ended.update(event.partition for event in got.events)
        return ended == {0, 1}

    collected(consumer, both)
    consumer.incremental_unassign([TopicPartition(topic, 0)])
    topics.fill(topic, values(3), partition=0)
    topics.fill(topic, values(3), partition=1)
    seen = collected(consumer, lambda got: any(event.offset == 5 for event in got.events))
    assert {partition for partition, *_ in seen} == {1}


def test_each_queue_is_read_by_itself_and_what_waits_is_not_lost(topics: Topics, consumer: Consumer) -> None:
    topic = topics.create("in", 2)
    for partition in (0, 1):
        topics.fill(topic, [bytes(1000)] * 3000, partition=partition)
    places = [(topic, partition) for partition in (0, 1)]
    with closing(consumer.queues(places)) as queues:
        consumer.assign([TopicPartition(*place, 0) for place in places])
        taken: dict[tuple[str, int], list[int]] = {place: [] for place in places}

        def took_all(place: tuple[str, int]) -> bool:
            if not queues.waiting(place):
                queues.wait(0.1)
            with queues.fetched(place, 7) as got:
                for records in got.records:
                    assert (records.topic, records.partition) == place
                    assert len(records) <= 7
                    taken[place] += records.offsets.tolist()
            return len(taken[place]) >= 3000

        def waits() -> bool:
            queues.wait(0.1)
            return queues.waiting(places[0])

        wait_until(waits, "the first partition waits")
        wait_until(lambda: took_all(places[1]), "the second one is read")
        assert taken[places[0]] == []
        wait_until(lambda: took_all(places[0]), "the first one is read")
    assert taken == {place: list(range(3000)) for place in places}


# -- records of unusual places and sizes


def test_records_larger_than_a_fetch_and_small_ones_by_turns_are_read(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = topics.create("in", 3)
    for partition in range(3):
        contents = [bytes([65 + n]) * (900_000 if n % 3 == partition else 10) for n in range(9)]
        topics.fill(topic, list(contents), partition=partition)
    splits = [{"topic": topic, "partition": p, "start": 0, "end": 9} for p in range(3)]
    cluster = KafkaCluster(topics.servers, config={"fetch.message.max.bytes": 20_000, "fetch.max.bytes": 1_000_000})
    found, expected = (read(client, cluster, splits, monkeypatch) for client in CLIENTS)
    assert found == expected
    assert len(found) == 27


@pytest.fixture(scope="module")
def cleaning() -> Iterator[Topics]:
    """A broker that compacts at once, and closes connections that are idle."""
    properties = {
        "log.cleaner.backoff.ms": "200",
        "log.cleaner.min.cleanable.ratio": "0.01",
        "connections.max.idle.ms": "1500",
    }
    with LocalKafka(properties=properties, heap="256m") as kafka:
        yield Topics(kafka.bootstrap_servers, "cleaning")


def test_the_gaps_of_compaction_are_passed(cleaning: Topics, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    topic = cleaning.create("in", config={**config, "min.compaction.lag.ms": "0", "delete.retention.ms": "0"})
    for turn in range(4):
        cleaning.fill(topic, [b"%d-%d" % (turn, n) for n in range(50)], key=b"same")
        cleaning.fill(topic, [b"kept %d" % turn], key=b"key %d" % turn)
        produce(cleaning, topic, ("commit", "abort")[turn % 2], turn, count=40, partitions=1, keyed=True)

    def compacted() -> bool:
        cleaning.fill(topic, [b"roll"], key=b"roll")  # rolls the segment, which may be compacted then
        return len(cleaning.read(topic, committed=False)) < 100

    wait_until(compacted, "the log is compacted", 120)
    end = ends(cleaning, topic, 1)[0][1]
    for start in (0, 1, 17, 60, 61, end - 1):
        split = {"topic": topic, "partition": 0, "start": start, "end": end}
        offsets = [
            [row["offset"] for row in read(client, cleaning.servers, [split], monkeypatch)] for client in CLIENTS
        ]
        assert offsets[0] == offsets[1], "the log may be compacted further between the reads, hence no values"


def test_a_client_whose_idle_connection_was_closed_reads_on_without_a_word(
    cleaning: Topics, caplog: pytest.LogCaptureFixture
) -> None:
    topic = cleaning.create("idle")
    with closing(native.NativeConsumer(settings(KafkaCluster(cleaning.servers)), logger=LOGGER)) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        collected(consumer, lambda got: bool(got.events))
        consumer.unassign()
        (broker,) = consumer._brokers._brokers.values()
        poll = select.poll()
        poll.register(broker.connection, select.POLLIN)
        assert poll.poll(60_000), "the broker has closed the connection"
        cleaning.fill(topic, values(2))
        consumer.assign([TopicPartition(topic, 0, 0)])
        assert collected(consumer, lambda got: bool(got.records))[0] == (0, 0, 2)
    assert [record for record in caplog.records if record.name == LOGGER.name] == []


# -- brokers that come and go


@pytest.mark.parametrize("client", CLIENTS)
def test_a_log_that_was_cut_and_refilled_under_a_reader_is_not_read_on(client: str, tmp_path: Path) -> None:
    if broker_version() == "3.9":
        pytest.skip("Kafka 3.9 keeps the leader's epoch when a broker restarts")
    with LocalKafka(directory=tmp_path / "data", heap="256m") as kafka:
        topics = Topics(kafka.bootstrap_servers, "cut")
        topic = topics.create("in")
        topics.fill(topic, values(100))
        log = next(kafka.directory.rglob(f"{topic}-0"))
        shutil.copytree(log, tmp_path / "copy")
        topics.fill(topic, values(100, "gone"))
        with closing(CLIENTS[client](settings(KafkaCluster(topics.servers)), logger=LOGGER)) as consumer:
            consumer.assign([TopicPartition(topic, 0, 0)])
            collected(consumer, lambda got: any(event.offset == 200 for event in got.events))
            kafka.kill()
            shutil.rmtree(log)
            shutil.copytree(tmp_path / "copy", log)
            kafka.restart()
            topics.fill(topic, values(200, "new"))
            seen = collected(consumer, lambda got: any(e.error.name() == "_AUTO_OFFSET_RESET" for e in got.events))
            assert not [each for each in seen if isinstance(each[1], int)], "no record was read of the new log"


@pytest.fixture(scope="module")
def three() -> Iterator[LocalKafka]:
    with LocalKafka(3, heap="256m") as kafka:
        yield kafka


def test_nothing_is_lost_or_repeated_while_brokers_are_killed_and_leaders_move(three: LocalKafka) -> None:
    topics = Topics(three.bootstrap_servers, "moving")
    topic = topics.create("in", 6, replicas=3)
    done, written = threading.Event(), [0] * 6
    producer = Producer({"bootstrap.servers": topics.servers, "log_level": 0, "enable.idempotence": True})

    def write() -> None:
        while not done.is_set():
            for partition in range(6):
                producer.produce(topic, b"%d" % written[partition], partition=partition)
                written[partition] += 1
            producer.flush(60)

    feeding = threading.Thread(target=write)
    feeding.start()
    got: dict[int, list[bytes]] = {partition: [] for partition in range(6)}
    try:
        with closing(native.NativeConsumer(settings(KafkaCluster(topics.servers)), logger=LOGGER)) as consumer:
            consumer.assign([TopicPartition(topic, partition, 0) for partition in range(6)])

            def take() -> None:
                with consumer.fetched(1000, 0.1) as fetched:
                    for records in fetched.records:
                        assert records.offsets[0] == len(got[records.partition])
                        got[records.partition] += records.values().to_pylist()

            def taken(more: int) -> None:
                goals = [len(each) + more for each in got.values()]

                def reached() -> bool:
                    take()
                    return all(len(each) >= goal for each, goal in zip(got.values(), goals, strict=True))

                wait_until(reached, f"{more} more of each partition")

            taken(50)
            for node in (1, 2, 3):
                three.kill(node)
                taken(50)
                restarting = threading.Thread(target=three.restart, args=[node])
                restarting.start()
                while restarting.is_alive():
                    take()
                taken(50)
            done.set()
            feeding.join()

            def all_read() -> bool:
                take()
                return [len(each) for each in got.values()] == written

            wait_until(all_read, "everything written was read")
    finally:
        done.set()
        feeding.join()
    assert got == {partition: [b"%d" % n for n in range(written[partition])] for partition in range(6)}


def test_a_topic_that_is_recreated_under_a_reader_is_not_read_on(topics: Topics) -> None:
    topic = topics.create("in")
    topics.fill(topic, values(3))
    with closing(native.NativeConsumer(settings(KafkaCluster(topics.servers)), logger=LOGGER)) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])
        assert collected(consumer, lambda got: bool(got.events))[0] == (0, 0, 3)
        topics.delete(topic)
        topics.create("in")
        topics.fill(topic, values(9, "new"))
        seen = collected(consumer, lambda got: any(e.error.code() == 100 for e in got.events))
    assert not [each for each in seen if isinstance(each[1], int)], "no record of the new topic"


def test_a_quota_is_reported_and_waited_for(kafka: SharedKafka, topics: Topics) -> None:
    topic = topics.create("in")
    topics.fill(topic, [bytes(1000)] * 4000)
    name = topic
    cluster = KafkaCluster(topics.servers, config={"client.id": name})
    with (
        quota(topics.servers, name),
        closing(native.NativeConsumer(settings(cluster, fetch_message_max_bytes="100000"), logger=LOGGER)) as consumer,
    ):
        consumer.assign([TopicPartition(topic, 0, 0)])
        seen = collected(consumer, lambda got: any(event.offset == 4000 for event in got.events))
    assert sum(next_ - first for _, first, next_ in seen if isinstance(first, int)) == 4000
    assert consumer.throttling.taken() > 0.5


# -- security


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalKafka, Path]]:
    """A broker with TLS that demands a certificate and a password, and ends sessions after four seconds."""
    import trustme
    from cryptography.hazmat.primitives import serialization

    place = tmp_path_factory.mktemp("tls")
    authority, other = trustme.CA(), trustme.CA()
    for name, ca in (("ca", authority), ("other", other)):
        ca.cert_pem.write_to_path(str(place / f"{name}.pem"))
    for name, issued in (("broker", authority.issue_cert("127.0.0.1")), ("client", authority.issue_cert("client"))):
        key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
        pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        (place / f"{name}.key").write_bytes(pem)
        (place / f"{name}.crt").write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
        (place / f"{name}.pem").write_bytes(pem + (place / f"{name}.crt").read_bytes())
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    properties = {
        "listener.security.protocol.map": "CLIENT:SASL_SSL,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "listener.name.client.ssl.keystore.type": "PEM",
        "listener.name.client.ssl.keystore.location": str(place / "broker.pem"),
        "listener.name.client.ssl.truststore.type": "PEM",
        "listener.name.client.ssl.truststore.location": str(place / "ca.pem"),
        "listener.name.client.ssl.client.auth": "required",
        "listener.name.client.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.client.plain.sasl.jaas.config": (
            'org.apache.kafka.common.security.plain.PlainLoginModule required user_alice="secret";'
        ),
        "listener.name.client.scram-sha-256.sasl.jaas.config": scram,
        "listener.name.client.scram-sha-512.sasl.jaas.config": scram,
        "listener.name.client.connections.max.reauth.ms": "4000",
    }
    with LocalKafka(properties=properties, heap="256m") as kafka:
        admin = Topics(kafka.internal_servers, "x").admin
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):
            change = UserScramCredentialUpsertion("alice", ScramCredentialInfo(mechanism, 4096), b"secret")
            for done in admin.alter_user_scram_credentials([change]).values():
                wait_for(done)
        yield kafka, place


def secure_cluster(kafka: LocalKafka, place: Path, mechanism: str = "SCRAM-SHA-512", **more: str) -> KafkaCluster:
    config = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanisms": mechanism,
        "sasl.username": "alice",
        "sasl.password": "env:ONCEWARD_TEST_PASSWORD",
        "ssl.ca.location": str(place / "ca.pem"),
        "ssl.certificate.location": str(place / "client.crt"),
        "ssl.key.location": str(place / "client.key"),
    }
    return KafkaCluster(kafka.bootstrap_servers, config={**config, **{k.replace("_", "."): v for k, v in more.items()}})


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_records_are_read_with_tls_certificates_and_passwords(
    secured: tuple[LocalKafka, Path], mechanism: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONCEWARD_TEST_PASSWORD", "secret")
    topics = Topics(secured[0].internal_servers, mechanism)
    topic = topics.create("in", 2)
    produce(topics, topic, "plain", 1)
    produce(topics, topic, "abort", 2)
    splits = [
        {"topic": topic, "partition": p, "start": 0, "end": end} for p, (_, end) in ends(topics, topic, 2).items()
    ]
    cluster = secure_cluster(*secured, mechanism)
    found, expected = (read(client, cluster, splits, monkeypatch) for client in CLIENTS)
    assert found == expected
    assert len(found) == 900


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"password": "wrong"}, "log in by SCRAM-SHA-512.*Authentication failed"),
        ({"ssl_ca_location": "other.pem"}, "agree on TLS.*CERTIFICATE_VERIFY_FAILED"),
        ({"security_protocol": "SASL_PLAINTEXT"}, "broker 127.0.0.1"),
    ],
    ids=["password", "authority", "no TLS"],
)
def test_what_does_not_fit_reads_nothing_and_is_named(
    secured: tuple[LocalKafka, Path], wrong: dict[str, str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka, place = secured
    monkeypatch.setenv("ONCEWARD_TEST_PASSWORD", wrong.pop("password", "secret"))
    monkeypatch.setenv("ONCEWARD_KAFKA_READER", "native")
    if "ssl_ca_location" in wrong:
        wrong = {"ssl_ca_location": str(place / wrong["ssl_ca_location"])}
    plain = wrong.pop("security_protocol", None)
    cluster = secure_cluster(kafka, place, **wrong)
    if plain is not None:
        config = {key: value for key, value in cluster.config.items() if not key.startswith("ssl.")}
        cluster = KafkaCluster(kafka.bootstrap_servers, config={**config, "security.protocol": plain})
    reader = KafkaSplitReader(cluster=cluster, group_id="g", give_up_after=2.0)
    with pytest.raises(CheckpointFailedError, match=why):
        list(reader({"topic": "t", "partition": 0, "start": 0, "end": 1}, frozenset({"value"})))


def test_a_reader_outlives_its_session(secured: tuple[LocalKafka, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONCEWARD_TEST_PASSWORD", "secret")
    topics = Topics(secured[0].internal_servers, "session")
    topic = topics.create("in")
    cluster = secure_cluster(*secured)
    count, began = 0, time.monotonic()
    with closing(native.NativeConsumer(settings(cluster), logger=LOGGER)) as consumer:
        consumer.assign([TopicPartition(topic, 0, 0)])

        def read_on() -> bool:
            nonlocal count
            topics.fill(topic, [b"x"])
            seen = collected(consumer, lambda got: bool(got.records))
            count += 1
            assert [each for each in seen if each[1] not in ("_PARTITION_EOF",)] == [(0, count - 1, count)], seen
            return time.monotonic() - began > 9

        wait_until(read_on, "two sessions have ended")
