"""Plays a script on one side and records the answers, in words that do not depend on the side."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pyarrow as pa
from confluent_kafka import KafkaException
from kafka.protocol.admin import (
    DeleteGroupsRequest,
    DescribeProducersRequest,
    ListGroupsRequest,
    ListTransactionsRequest,
)
from kafka.protocol.consumer import OffsetCommitRequest
from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    EndTxnRequest,
    InitProducerIdRequest,
    TxnOffsetCommitRequest,
    WriteTxnMarkersRequest,
)

from onceward.sinks.kafka.client import GroupOffset
from onceward.sinks.kafka.control.brokers import topic_facts
from onceward.sinks.kafka.control.control_plane import CoordinatorKind, NoAnswer
from onceward.sinks.kafka.control.logs import Log
from onceward.sinks.kafka.control.receipts import RECEIPT_TOPIC, read_offsets
from onceward.sinks.kafka.control.transactions import State, Transactions, TransactionView
from tests.integration.kafka_model_contract.sides import Ids, Side, away
from tests.support.kafka_model import Partition

__all__ = ["Stage", "Writer"]

_T = TypeVar("_T")
_LIMIT_S = 20.0
_CONCURRENT = 51
_AWAY = (14, 15, 16)
_NOT_YET = (3, 6)
_OFFSETS_TOPIC = "__consumer_offsets"


class Stage:
    """Runs one script and keeps its transcript. ``who`` is a transactional id's short name."""

    def __init__(self, side: Side, version: int) -> None:
        """`version`: that of EndTxn, unless the script names another."""
        self.side = side
        self.version = version
        self.lines: list[str] = []
        self.transactions = Transactions(side.control)
        self._producers: list[int] = []

    # -- topics, clients and ids

    def name(self, who: str) -> str:
        return f"{self.side.prefix}{who}"

    def topic(self, short: str = "out", partitions: int = 1) -> str:
        name = self.name(short)
        self.side.create_topic(name, partitions)
        return name

    def lose_leaders(self, topic: str) -> None:
        self.side.lose_leaders(topic)

    def regain_leaders(self, topic: str) -> None:
        self.side.regain_leaders(topic)

    def writer(self, who: str = "t", *, timeout_ms: int = 60_000) -> "Writer":
        """A client that has taken over the id and begun; nothing is enlisted yet."""
        writer = Writer(self, who, timeout_ms)
        self._say(f"{who}: initialised {writer.outcome}")
        return writer

    def ids(self, who: str = "t") -> Ids:
        """The (producer id, epoch) that the coordinator reports now."""
        view = self._view(self.name(who))
        return self.name(who), view.producer_id, view.epoch

    # -- requests and answers

    def end(self, ids: Ids, *, commit: bool, version: int | None = None) -> int:
        """Send EndTxn, retried while answered with 51; then wait for the end."""
        version = self.version if version is None else version
        request = EndTxnRequest(
            transactional_id=ids[0],
            producer_id=ids[1],
            producer_epoch=ids[2],
            committed=commit,
            min_version=version,
            max_version=version,
        )
        codes = self._asked(ids[0], request)
        self._say(f"{'commit' if commit else 'abort'} v{version}{self._at(ids)}: {codes[-1]}")
        self.settle(ids[0])
        return codes[-1]

    def fence(self, who: str = "t") -> None:
        self.initialise((self.name(who), -1, -1))

    def initialise(self, ids: Ids, *, timeout_ms: int = 60_000) -> Ids:
        """Send InitProducerId, retried while answered with 51. Returns what it gave."""
        request = InitProducerIdRequest(
            transactional_id=ids[0],
            transaction_timeout_ms=timeout_ms,
            producer_id=ids[1],
            producer_epoch=ids[2],
            max_version=5,
        )
        given: Ids = (ids[0], -1, -1)

        def keep(answer: Any) -> None:
            nonlocal given
            given = (ids[0], int(answer.producer_id), int(answer.producer_epoch))

        codes = self._asked(ids[0], request, keep)
        gave = f" gives{self._at(given)}" if codes[-1] == 0 else ""
        self._say(f"init{self._at(ids)}: {' then '.join(map(str, dict.fromkeys(codes)))}{gave}")
        return given

    def describe(self, who: str = "t") -> None:
        name = self.name(who)
        view = self._view(name)
        if view.code != 0:
            self._say(f"{who} is {view.code}")
            return
        enlisted = ", ".join(
            _OFFSETS_TOPIC if topic == _OFFSETS_TOPIC else f"{topic.removeprefix(self.side.prefix)}{list(numbers)}"
            for topic, numbers in sorted(view.partitions.items())
        )
        at = self._at((name, view.producer_id, view.epoch))
        self._say(f"{who} is {view.state}{at}, timeout {view.timeout_ms}, partitions: {enlisted or 'none'}")

    def listed(self, *states: str) -> None:
        """Record our ids in a list of these states."""
        pattern = f"{self.side.prefix}.*" if self.side.prefix else None
        node = self.side.control.nodes()[0]
        request = ListTransactionsRequest(
            state_filters=list(states), producer_id_filters=[], transactional_id_pattern=pattern
        )
        answer = self.side.control.ask(request, node=node)
        found = sorted(
            (str(entry.transactional_id).removeprefix(self.side.prefix), str(entry.transaction_state))
            for entry in answer.transaction_states
        )
        self._say(f"listed {'/'.join(states) or 'all'}: {answer.error_code} {found} {answer.unknown_state_filters}")

    def receipt(self, who: str = "t") -> None:
        name = self.name(who)
        offset = self._there(lambda: read_offsets(self.side.control, [name])[name], lambda found: found.code)
        self._say(f"receipt of {who}: code {offset.code}, {offset.offset}, {offset.metadata!r}")

    def delete_group(self, who: str = "t") -> None:
        name = self.name(who)
        self._sent(
            f"delete group {who}",
            CoordinatorKind.GROUP,
            name,
            DeleteGroupsRequest([name]),
            lambda answer: int(answer.results[0].error_code),
        )

    def commit_offset(self, ids: Ids, offset: int, metadata: str, *, group: str = "t", implicit: bool = False) -> None:
        version, topic = 5 if implicit else 3, TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
        request = TxnOffsetCommitRequest(
            transactional_id=ids[0],
            group_id=self.name(group),
            producer_id=ids[1],
            producer_epoch=ids[2],
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            topics=_offset(topic, topic.TxnOffsetCommitRequestPartition, offset, metadata),
            min_version=version,
            max_version=version,
        )
        self._sent(
            f"commit offset{self._at(ids)}{' implicitly' if implicit else ''}",
            CoordinatorKind.GROUP,
            self.name(group),
            request,
            lambda answer: int(answer.topics[0].partitions[0].error_code),
        )

    def plain_offset(self, offset: int, metadata: str, *, group: str = "t") -> None:
        """Commit an offset outside of transactions, as the claim is."""
        name, topic = self.name(group), OffsetCommitRequest.OffsetCommitRequestTopic
        request = OffsetCommitRequest(
            group_id=name,
            generation_id_or_member_epoch=-1,
            member_id="",
            group_instance_id=None,
            topics=_offset(topic, topic.OffsetCommitRequestPartition, offset, metadata),
            min_version=7,
            max_version=8,
        )
        self._sent(
            f"plain offset {offset}",
            CoordinatorKind.GROUP,
            name,
            request,
            lambda answer: int(answer.topics[0].partitions[0].error_code),
        )

    def look(self, topic: str) -> None:
        """Record what readers see, and how far."""
        short = topic.removeprefix(self.side.prefix)
        for committed in (True, False):
            kind = "committed" if committed else "everything"
            self._say(f"{short} {kind}: {self.side.read(topic, committed=committed)}")
        self._say(f"{short} stable and end: {self.side.ends(topic)}")
        for number in range(len(self.side.ends(topic))):
            self._say(f"{short}-{number} holds {self._log((topic, number)) or 'nothing'}")

    def _log(self, place: Partition) -> str:
        """Whose records and which markers a partition holds, in order. Batch boundaries are left to the clients."""
        log = Log(self.side.control, place, limit=1_000_000)
        held: list[str] = []
        for batch in log.read(log.first, log.end):
            at = self._at(("", batch.producer_id, batch.epoch))
            if batch.commit is not None:
                held.append(f"{'COMMIT' if batch.commit else 'ABORT'}{at} at {batch.last_offset}")
            elif held and held[-1].startswith(f"records{at} "):
                held[-1] = f"records{at} up to the {batch.records}."
            else:
                held.append(f"records{at} up to the {batch.records}.")
        return ", ".join(held)

    def held(self, topic: str) -> None:
        """Record what the leader of all partitions reports about producers: who wrote how much, and whose transaction
        is open since which offset."""
        numbers = list(range(len(self.side.ends(topic))))
        asked = DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=numbers)
        answer = self.side.control.ask(DescribeProducersRequest(topics=[asked]), node=self._leader(topic))
        for partition in answer.topics[0].partitions:
            found = [
                f"{self._at(('', one.producer_id, one.producer_epoch)).strip()} wrote up to {one.last_sequence}, "
                f"open since {one.current_txn_start_offset}"
                for one in partition.active_producers
            ]
            short = topic.removeprefix(self.side.prefix)
            self._say(f"{short}-{partition.partition_index}: {partition.error_code} {found}")

    def abort_one_partition(self, ids: Ids, topic: str, partition: int = 0) -> None:
        """Abort in one partition, as ``kafka-transactions abort`` does."""
        where = WriteTxnMarkersRequest.WritableTxnMarker.WritableTxnMarkerTopic(
            name=topic, partition_indexes=[partition]
        )
        marker = WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id=ids[1], producer_epoch=ids[2], transaction_result=False, topics=[where], coordinator_epoch=0
        )
        answer = self.side.control.ask(WriteTxnMarkersRequest(markers=[marker]), node=self._leader(topic))
        code = answer.markers[0].topics[0].partitions[0].error_code
        self._say(f"abort of one partition{self._at(ids)}: {code}")

    def groups(self, *who: str) -> None:
        """Record which of the groups exist."""
        node = self.side.control.nodes()[0]
        answer = self._there(
            lambda: self.side.control.ask(ListGroupsRequest(max_version=4), node=node), lambda found: found.error_code
        )
        listed = {str(group.group_id) for group in answer.groups}
        self._say(f"groups: {[each for each in who if self.name(each) in listed]}")

    def settle(self, name: str) -> None:
        """Wait until no end is running; the broker determines how long that takes."""
        deadline = self.side.now() + _LIMIT_S
        while self._view(name).state in (State.PREPARE_ABORT, State.PREPARE_COMMIT):
            assert self.side.now() < deadline, f"{name} is not ended in time"
            self.side.wait(0.01)

    def await_state(self, state: State, who: str = "t") -> None:
        deadline = self.side.now() + _LIMIT_S
        name = self.name(who)
        while self._view(name).state is not state:
            assert self.side.now() < deadline, f"{who} is not {state} in time"
            self.side.wait(0.05)
        self._say(f"{who} became {state}")

    # -- requests as a client library sends them

    def add_partition(self, ids: Ids, topic: str, partition: int = 0) -> None:
        name, producer, epoch = ids
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=producer,
            v3_and_below_producer_epoch=epoch,
            v3_and_below_topics=[AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=[partition])],
            min_version=3,
            max_version=3,
        )

        def code(answer: Any) -> int:
            return int(answer.results_by_topic_v3_and_below[0].results_by_partition[0].partition_error_code)

        self._sent(f"add partition{self._at(ids)}", CoordinatorKind.TRANSACTION, name, request, code)

    def add_offsets(self, ids: Ids, group: str = "t") -> None:
        name, producer, epoch = ids
        request = AddOffsetsToTxnRequest(
            transactional_id=name,
            producer_id=producer,
            producer_epoch=epoch,
            group_id=self.name(group),
            max_version=3,
        )
        self._sent(
            f"add offsets{self._at(ids)}",
            CoordinatorKind.TRANSACTION,
            name,
            request,
            lambda answer: int(answer.error_code),
        )

    def produce(
        self,
        ids: Ids,
        topic: str,
        values: Sequence[bytes],
        sequence: int,
        *,
        partition: int = 0,
        implicit: bool = False,
    ) -> None:
        deadline = self.side.now() + _LIMIT_S
        while True:
            code, offset = self.side.produce(ids, (topic, partition), values, sequence, implicit=implicit)
            if code not in _NOT_YET:
                break
            assert self.side.now() < deadline, f"{topic} is not led in time"
            self.side.wait(0.02)
        at = f" at {offset}" if code == 0 else ""
        how = " implicitly" if implicit else ""
        self._say(f"produce{self._at(ids)} sequence {sequence}{how}: {code}{at}")

    # -- inside

    def _leader(self, topic: str) -> int:
        return topic_facts(self.side.control, [topic])[topic].leaders[0]

    def _sent(self, what: str, kind: CoordinatorKind, key: str, request: Any, code_of: Callable[[Any], int]) -> None:
        """Send it to the key's coordinator and record the code."""

        def ask() -> int:
            answer = self.side.control.send_located(kind, {key: request})[key]
            return away(answer) if isinstance(answer, NoAnswer) else code_of(answer)

        self._raw(what, ask)

    def _raw(self, what: str, ask: Callable[[], int]) -> None:
        self._say(f"{what}: {self._there(ask, lambda code: code)}")

    def _view(self, name: str) -> TransactionView:
        return self._there(lambda: self.transactions.describe([name])[name], lambda view: view.code)

    def _there(self, ask: Callable[[], _T], code_of: Callable[[_T], object]) -> _T:
        """The answer once the coordinator exists: a new broker creates it when first asked for it."""
        deadline = self.side.now() + _LIMIT_S
        while code_of(answer := ask()) in _AWAY:
            assert self.side.now() < deadline, f"answered {answer} all the time"
            self.side.wait(0.02)
        return answer

    def _asked(self, name: str, request: Any, keep: Callable[[Any], None] = lambda _answer: None) -> list[int]:
        codes: list[int] = []
        deadline = self.side.now() + _LIMIT_S
        while not codes or codes[-1] == _CONCURRENT:
            assert self.side.now() < deadline, f"{name} is answered {codes} all the time"
            answer = self.side.control.send_located(CoordinatorKind.TRANSACTION, {name: request})[name]
            code = away(answer) if isinstance(answer, NoAnswer) else int(answer.error_code)
            if code in _AWAY:
                self.side.wait(0.02)
                continue
            codes.append(code)
            keep(answer)
            if code == _CONCURRENT:
                self.side.wait(0.01)
        return codes

    def _at(self, ids: Ids) -> str:
        """Producer ids, numbered in the order of their appearance."""
        if ids[1] < 0:
            return ""
        if ids[1] not in self._producers:
            self._producers.append(ids[1])
        return f" (producer {self._producers.index(ids[1]) + 1}, epoch {ids[2]})"

    def _say(self, line: str) -> None:
        self.lines.append(line)


class Writer:
    """A client with one transaction."""

    def __init__(self, stage: Stage, who: str, timeout_ms: int) -> None:
        self._stage = stage
        self.who = who
        self._failures: list[object] = []
        self.producer = stage.side.producer(stage.name(who), timeout_ms, self._failures)
        self.outcome = self._outcome(lambda: self.producer.init_transactions(_LIMIT_S))
        if self.outcome == "well":
            self.producer.begin_transaction()

    def write(self, topic: str, *values: bytes, partition: int = 0) -> "Writer":
        """Produce and flush."""
        outcome = self._outcome(lambda: self._flushed(topic, values, partition))
        self._stage._say(f"{self.who}: wrote {outcome}, {len(self._failures)} not delivered")
        return self

    def receipt(self, checkpoint: int, token: str) -> "Writer":
        offset = GroupOffset(self._stage.name(self.who), RECEIPT_TOPIC, 0, checkpoint, token)
        outcome = self._outcome(lambda: self.producer.send_offset(offset, _LIMIT_S).result())
        self._stage._say(f"{self.who}: receipt {outcome}")
        return self

    def abort(self) -> None:
        outcome = self._outcome(lambda: self.producer.abort_transaction(_LIMIT_S))
        self._stage._say(f"{self.who}: aborted {outcome}")
        self._stage.settle(self._stage.name(self.who))

    @property
    def ids(self) -> Ids:
        return self._stage.ids(self.who)

    def _flushed(self, topic: str, values: Sequence[bytes], partition: int) -> None:
        numbers = pa.array([partition] * len(values), pa.int32())
        records = pa.record_batch([pa.array(values, pa.binary()), numbers], ["value", "partition"])
        self.producer.produce(topic, records, lambda: self.producer.poll(_LIMIT_S))
        left = self.producer.flush(_LIMIT_S)
        assert left == 0, f"{left} records left"

    def _outcome(self, call: Callable[[], object]) -> str:
        try:
            call()
        except KafkaException as error:
            return "refused permanently" if error.args[0].fatal() else "refused"
        return "well"


def _offset(topic: Any, partition: Any, offset: int, metadata: str) -> list[Any]:
    """The topics of a request that commits an offset with metadata."""
    one = partition(partition_index=0, committed_offset=offset, committed_leader_epoch=-1, committed_metadata=metadata)
    return [topic(name=RECEIPT_TOPIC, partitions=[one])]
