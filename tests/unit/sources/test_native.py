"""The reader of our own without a broker: what it asks, and what it makes of answers, whole or damaged."""

import logging
import random
import struct
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, TopicPartition
from kafka.errors import kafka_errors
from kafka.protocol.consumer import FetchRequest as TheirRequest
from kafka.protocol.consumer import FetchResponse as TheirAnswer

from onceward.connections.sockets.choice import missing, say_librdkafka
from onceward.connections.sockets.encoding import Decoder, GarbledError
from onceward.connections.sockets.metadata import NO_ID, Leader, Topic
from onceward.connections.sockets.requests import Request
from onceward.sources.kafka.client import Consumer, choice

native = pytest.importorskip("onceward.sources.kafka.client.native.consumer", exc_type=ImportError)

from onceward.sources.kafka.client.native.fetching import Answer, FetchRequest, Part, Wanted  # noqa: E402
from onceward.sources.kafka.client.native.meanings import Meaning, meaning_of  # noqa: E402
from onceward.sources.kafka.client.native.pieces import Epochs, scan  # noqa: E402
from onceward.sources.kafka.client.native.settings import FetchSettings  # noqa: E402

ID = uuid.UUID(int=7)
SETTINGS = FetchSettings.of({"fetch.wait.max.ms": 5, "fetch.message.max.bytes": 1000})
LOGGER = logging.getLogger("onceward.kafka")
VERSIONS = range(4, 19)


def batch(first: int, count: int, *, epoch: int = 0, size: int = 0, header: bytes = b"") -> bytes:
    """A batch of format 2 of records without key and of value ``v``; ``size``: instead of the true length. ``header``:
    the name of a header of each record, of one byte."""
    headers = b"\x02\x02" + header + b"\x01" if header else b"\x00"
    length = bytes([2 * (6 + len(headers))])
    records = b"".join(length + b"\x00\x00" + bytes([2 * n]) + b"\x01\x02v" + headers for n in range(count))
    body = struct.pack(">hiqqqhii", 0, count - 1, 0, 0, -1, -1, -1, count) + records
    return struct.pack(">qiibI", first, size or 9 + len(body), epoch, 2, 0) + body


# -- Fetch


class Heard:
    """A request, and what it heard."""

    def __init__(self, wanted: Sequence[Wanted], ids: Mapping[str, uuid.UUID]) -> None:
        self.answers: list[Answer] = []
        self.request = FetchRequest(
            wanted,
            ids,
            SETTINGS,
            room=lambda size: memoryview(bytearray(size)),
            answered=lambda _, answer: self.answers.append(answer),
            lost=lambda _, why: None,
        )


WANTED = [Wanted("t", 0, 11, 3, 2), Wanted("t", 4, 0, -1, -1)]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_fetch_is_what_kafka_python_reads_in_it(version: int) -> None:
    body = b"".join(Heard(WANTED, {"t": ID}).request.encode(version, flexible=version >= 12))
    read = TheirRequest.decode(body, version=version)
    assert (read.max_wait_ms, read.min_bytes, read.isolation_level) == (5, 1, 1)
    (topic,) = read.topics
    assert topic.topic_id == ID if version >= 13 else topic.topic == "t"
    found = [(p.partition, p.fetch_offset, p.partition_max_bytes) for p in topic.partitions]
    assert found == [(0, 11, 1000), (4, 0, 1000)]
    if version >= 9:
        assert [p.current_leader_epoch for p in topic.partitions] == [3, -1]
    if version >= 12:
        assert [p.last_fetched_epoch for p in topic.partitions] == [2, -1]


def their_answer(version: int, *, records: bytes = b"recs") -> bytes:
    topic = TheirAnswer.FetchableTopicResponse
    part = topic.PartitionData
    parts = [
        part(
            partition_index=0, error_code=0, high_watermark=20, last_stable_offset=15, records=records,
            aborted_transactions=[part.AbortedTransaction(producer_id=9, first_offset=12)],
            diverging_epoch=part.EpochEndOffset(epoch=1, end_offset=8),
        ),
        part(partition_index=4, error_code=6, high_watermark=-1, last_stable_offset=-1, records=None,
             aborted_transactions=None),
    ]  # fmt: skip
    named = {"topic_id": ID} if version >= 13 else {"topic": "t"}
    made = TheirAnswer(throttle_time_ms=250, responses=[topic(partitions=parts, **named)], version=version)
    return bytes(made.encode(version=version))


@pytest.mark.parametrize("version", VERSIONS)
def test_an_answer_that_kafka_python_writes_is_understood(version: int) -> None:
    heard = Heard(WANTED, {"t": ID})
    heard.request.answered(version, Decoder(memoryview(their_answer(version)), flexible=version >= 12))
    (answer,) = heard.answers
    assert (answer.error, answer.throttled_s, answer.mutes) == (0, 0.25, version >= 8)
    first, second = answer.parts["t", 0], answer.parts["t", 4]
    assert (first.error, first.stable, first.aborted, bytes(first.records)) == (0, 15, [(9, 12)], b"recs")
    assert first.diverged == ((1, 8) if version >= 12 else None)
    assert (second.error, bytes(second.records)) == (6, b"")


@pytest.mark.parametrize("version", [4, 11, 12, 17])
def test_an_answer_that_is_cut_or_changed_is_refused_or_read_within_its_limits(version: int) -> None:
    whole, chance = their_answer(version), random.Random(version)
    damaged = [whole[:size] for size in range(len(whole))]
    for _ in range(3000):
        copy = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            copy[chance.randrange(len(copy))] = chance.randrange(256)
        damaged.append(bytes(copy))
    refused = 0
    for each in damaged:
        heard = Heard(WANTED, {"t": ID})
        try:
            heard.request.answered(version, Decoder(memoryview(each), flexible=version >= 12))
        except GarbledError:
            refused += 1
            assert heard.answers == []
    assert refused >= len(whole), "all that are cut, and more"


def test_without_the_id_of_a_topic_it_is_asked_by_name() -> None:
    assert Heard(WANTED, {"t": NO_ID}).request.highest == 12
    assert Heard(WANTED, {"t": ID}).request.highest is None


def test_a_partition_that_was_not_asked_is_refused() -> None:
    heard = Heard(WANTED[:1], {"t": ID})
    with pytest.raises(GarbledError, match="not asked"):
        heard.request.answered(11, Decoder(memoryview(their_answer(11)), flexible=False))


# -- batches before they are decoded


def test_a_scan_passes_whole_batches_and_knows_the_epoch_of_each_offset() -> None:
    data = batch(10, 3, epoch=1) + batch(20, 2, epoch=1) + batch(22, 1, epoch=4) + batch(30, 5)[:-1]
    found = scan(memoryview(data), 11)
    assert found.next == 23
    assert [found.epochs.of(offset) for offset in (9, 10, 12, 21, 22, 99)] == [-1, 1, 1, 1, 4, 4]


@pytest.mark.parametrize("bad", [batch(5, 1, size=20), b"", bytes(61), batch(5, 1)[:60], batch(5, 1)[:68]])
def test_a_scan_stops_before_what_is_no_batch(bad: bytes) -> None:
    assert scan(memoryview(batch(3, 2) + bad), 3).next == 5
    assert scan(memoryview(bad), 3) == (3, Epochs())


# -- the consumer, with brokers that the test plays


class Played:
    """Stands for the connections: what was asked, and what is known of topics."""

    def __init__(self, topics: Mapping[str, Topic]) -> None:
        self.topics = dict(topics)
        self.sent: list[tuple[int, Request]] = []
        self.refreshed: list[str] = []
        self.muted: list[float] = []
        self.refreshes = 0
        self.rebootstraps = 0

    def topic(self, name: str) -> Topic | None:
        return self.topics.get(name)

    def leader(self, topic: str, partition: int) -> Leader | None:
        return self.topics[topic].leaders.get(partition) if topic in self.topics else None

    def refresh(self, topics: Sequence[str]) -> None:
        self.refreshed += topics

    def send(self, node: int, request: Request) -> bool:
        self.sent.append((node, request))
        return True

    def mute(self, _node: int, seconds: float) -> None:
        self.muted.append(seconds)

    def serve(self, _timeout: float) -> bool:
        return False

    def rebootstrap(self) -> None:
        self.rebootstraps += 1

    def close(self) -> None:
        pass


class Stage:
    """A consumer of one partition, from offset 10."""

    def __init__(self) -> None:
        config = {"bootstrap.servers": "127.0.0.1:1", "fetch.wait.max.ms": 5, "check.crcs": False}
        self.consumer: Any = native.NativeConsumer(config, logger=LOGGER)
        self.consumer._brokers.close()
        self.brokers = Played({"t": Topic(0, ID, {0: Leader(1, 5, 0)})})
        self.consumer._brokers = self.brokers
        self.consumer.assign([TopicPartition("t", 0, 10)])
        self.got()

    def got(self) -> tuple[list[int], list[tuple[str, int]]]:
        """The offsets and the events of one call."""
        with self.consumer.fetched(1000, 0) as got:
            offsets = [offset for records in got.records for offset in records.offsets.tolist()]
            return offsets, [(event.error.name(), event.offset) for event in got.events]

    @property
    def request(self) -> FetchRequest:
        request = self.brokers.sent[-1][1]
        assert isinstance(request, FetchRequest)
        return request

    def answer(self, records: bytes = b"", *, error: int = 0, whole: int = 0, stable: int = 100, **part: Any) -> None:
        room = self.request.room(len(records) + 1)
        room[: len(records)] = records
        made = Part(error, stable, part.pop("aborted", []), room[: len(records)], part.pop("diverged", None))
        self.request._answered(self.request, Answer(whole, part.get("throttled", 0.0), True, {("t", 0): made}))


def test_the_next_fetch_is_sent_with_the_answer_and_names_the_epochs() -> None:
    stage = Stage()
    assert stage.request.wanted == [Wanted("t", 0, 10, 5, -1)]
    stage.answer(batch(8, 5, epoch=4))
    assert stage.request.wanted == [Wanted("t", 0, 13, 5, 4)]
    assert stage.got() == ([10, 11, 12], [])
    assert stage.consumer.positions([("t", 0)]) == [(13, 4)]


def test_one_answer_is_fetched_ahead_and_no_more() -> None:
    stage = Stage()
    for first in (10, 12, 14):
        stage.answer(batch(first, 2))
        if first == 12:
            break
    assert len(stage.brokers.sent) == 2, "two answers wait"
    assert stage.got() == ([10, 11, 12, 13], [])
    stage.got()
    assert len(stage.brokers.sent) == 3


@pytest.mark.parametrize("error", [5, 6, 8, 9, 13, 56, 72, 74, 75, 100, 103])
def test_errors_of_moving_leaders_ask_for_metadata_and_fetch_again(error: int) -> None:
    stage = Stage()
    stage.answer(error=error)
    assert stage.brokers.refreshed == ["t"]
    assert stage.got()[0] == []
    stage.consumer._partitions["t", 0].again = 0.0
    stage.got()
    assert len(stage.brokers.sent) == 2
    stage.answer(batch(10, 1))
    assert stage.got() == ([10], [])


@pytest.mark.parametrize("error", [7, 78])
def test_errors_that_pass_are_asked_again_without_new_metadata(error: int) -> None:
    stage = Stage()
    stage.answer(error=error)
    assert stage.brokers.refreshed == []
    assert stage.got()[0] == []
    stage.consumer._partitions["t", 0].again = 0.0
    stage.got()
    assert len(stage.brokers.sent) == 2


@pytest.mark.parametrize("error", [-1, 2, 17, 29, 35, 43, 70, 76, 87, 109, 119, 9999])
def test_every_other_error_stops_the_partition_and_is_reported(error: int) -> None:
    stage = Stage()
    stage.answer(error=error)
    assert stage.got() == ([], [(KafkaError(error).name(), 10)])
    stage.got()
    assert len(stage.brokers.sent) == 1


@pytest.mark.parametrize("part", [{"error": 1}, {"diverged": (3, 8)}])
def test_an_offset_that_is_gone_or_of_another_log_is_reported_as_gone(part: dict[str, Any]) -> None:
    stage = Stage()
    stage.answer(batch(10, 1), **part)
    assert stage.got() == ([], [("_AUTO_OFFSET_RESET", 10)])
    stage.got()
    assert len(stage.brokers.sent) == 1


def test_an_error_of_the_whole_answer_counts_for_each_partition() -> None:
    stage = Stage()
    stage.answer(batch(10, 1), whole=70)
    assert stage.got()[0] == []
    assert stage.consumer._partitions["t", 0].stopped


def test_what_cannot_be_decoded_fails_the_read_behind_the_records_before_it() -> None:
    stage = Stage()
    damaged = bytearray(batch(12, 2))
    damaged[61] = 0xFF
    stage.answer(batch(10, 2) + damaged)
    assert stage.got() == ([10, 11], [("_BAD_MSG", 14)])
    sent = len(stage.brokers.sent)
    stage.answer(batch(14, 1))
    assert stage.got() == ([], []), "nothing behind it"
    assert len(stage.brokers.sent) == sent


def test_an_end_is_reported_once_and_the_next_one_again() -> None:
    stage = Stage()
    stage.answer(batch(10, 2), stable=12)
    assert stage.got() == ([10, 11], [("_PARTITION_EOF", 12)])
    stage.answer(stable=12)
    assert stage.got() == ([], [])
    stage.answer(batch(12, 1), stable=13)
    assert stage.got() == ([12], [("_PARTITION_EOF", 13)])


def test_a_batch_that_is_cut_is_fetched_again() -> None:
    stage = Stage()
    stage.answer(batch(10, 3)[:-1])
    assert stage.got() == ([], [])
    assert [request.wanted[0].offset for _, request in stage.brokers.sent if isinstance(request, FetchRequest)] == [
        10,
        10,
    ]


def test_a_topic_that_has_another_id_than_the_one_that_was_read_stops_the_partition() -> None:
    stage = Stage()
    stage.answer(batch(10, 2))
    assert stage.got() == ([10, 11], [])
    stage.answer(error=100)
    stage.brokers.topics["t"] = Topic(0, uuid.UUID(int=8), {0: Leader(1, 0, 0)})
    stage.consumer._partitions["t", 0].again = 0.0
    stage.got()
    assert stage.got()[1][0][0] == KafkaError(100).name()
    assert len(stage.brokers.sent) == 2


def test_a_quota_mutes_the_broker_and_is_reported() -> None:
    stage = Stage()
    stage.answer(throttled=1.5)
    assert stage.brokers.muted == [1.5]
    assert (stage.consumer.throttling.taken(), stage.consumer.throttling.taken()) == (1.5, 0.0)


def test_an_answer_to_a_partition_that_was_left_is_dropped() -> None:
    stage = Stage()
    old = stage.request
    stage.consumer.assign([TopicPartition("t", 0, 10)])
    stage.answer(batch(10, 3), stable=13)
    assert stage.got() == ([], []), "it is asked again, although the answer would fit"
    assert stage.request is not old
    stage.answer(batch(10, 3), stable=13)
    assert stage.got() == ([10, 11, 12], [("_PARTITION_EOF", 13)])


def test_brokers_that_answer_are_not_looked_for_although_nothing_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    now = time.monotonic()
    monkeypatch.setattr(native, "time", SimpleNamespace(monotonic=lambda: now + 100))
    stage.answer(stable=10)
    assert stage.got() == ([], [("_PARTITION_EOF", 10)])
    stage.consumer.rebootstrap()
    assert stage.brokers.rebootstraps == 0
    now += 100
    stage.consumer.rebootstrap()
    assert stage.brokers.rebootstraps == 1


def test_nothing_behind_the_end_of_a_range_is_fetched() -> None:
    stage = Stage()
    stage.consumer.assign([TopicPartition("t", 0, 10)], ends=[12])
    stage.answer()
    stage.got()
    sent = len(stage.brokers.sent)
    stage.answer(batch(10, 9))
    assert stage.got() == (list(range(10, 19)), [("_PARTITION_EOF", 19)])
    stage.got()
    assert len(stage.brokers.sent) == sent


def test_every_code_of_the_protocol_has_a_meaning_and_few_are_tried_again() -> None:
    codes = [code for code in kafka_errors if code != 0]
    tried = {code for code in codes if meaning_of(code) is not Meaning.FAIL}
    assert tried == {1, 3, 5, 6, 7, 8, 9, 13, 56, 72, 74, 75, 78, 100, 103}


# -- which client reads


def chosen(**more: str) -> Consumer:
    return choice.new_consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", **more}, logger=LOGGER)


@pytest.mark.parametrize("name", ["native", "librdkafka", None])
def test_the_variable_decides(name: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(choice.READER_VARIABLE, raising=False)
    if name is not None:
        monkeypatch.setenv(choice.READER_VARIABLE, name)
    made = chosen()
    assert isinstance(made, native.NativeConsumer) == (name == "native")
    made.close()


def test_without_the_codec_librdkafka_reads_and_the_log_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(choice.READER_VARIABLE, "auto")
    monkeypatch.setattr(choice, "missing", missing.__wrapped__)
    monkeypatch.setitem(sys.modules, "onceward_native", None)
    say_librdkafka.cache_clear()
    for _ in range(2):
        made = chosen()
        assert not isinstance(made, native.NativeConsumer)
        made.close()
    (line,) = [record.getMessage() for record in caplog.records if "read by librdkafka" in record.getMessage()]
    assert "onceward-native is not installed" in line


def test_a_setting_that_only_librdkafka_follows_selects_it_and_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(choice.READER_VARIABLE, "auto")
    say_librdkafka.cache_clear()
    for _ in range(2):
        made = chosen(**{"client.rack": "a"})
        assert not isinstance(made, native.NativeConsumer)
        made.close()
    (line,) = [record.getMessage() for record in caplog.records if "librdkafka" in record.getMessage()]
    assert "client.rack" in line


@pytest.mark.parametrize("bad", [batch(12, 1, header=b"\xff"), batch(12, 1)[:16] + b"\1" + batch(12, 1)[17:]])
def test_what_only_librdkafka_reads_fails_the_read_and_is_left_to_it_from_then_on(
    bad: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(choice.READER_VARIABLE, "auto")
    monkeypatch.setattr(choice, "_left", [])
    made = chosen()
    assert isinstance(made, native.NativeConsumer)
    made.close()
    stage = Stage()
    stage.answer(batch(10, 2) + bad)
    offsets, events = stage.got()
    assert (offsets, [name for name, _ in events]) == ([10, 11], ["_BAD_MSG"])
    made = chosen()
    assert not isinstance(made, native.NativeConsumer)
    made.close()
