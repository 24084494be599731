"""The transaction coordinators: requests about transactional ids."""

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from onceward.connections.codes import ErrorCode
from tests.support.kafka_model import answers
from tests.support.kafka_model.endings import Endings
from tests.support.kafka_model.placement import Shard, shard_of
from tests.support.kafka_model.settings import OFFSETS_TOPIC, AddOffsets, AddPartitions, Partition
from tests.support.kafka_model.state import ClusterState, TransactionTable
from tests.support.kafka_model.transactions import PREPARED, Change, Entry, State, end, initialise

__all__ = ["TransactionCoordinators"]

_NAMED = frozenset(state.value for state in State)


class TransactionCoordinators:
    """The transaction coordinators on all brokers."""

    def __init__(self, state: ClusterState, endings: Endings) -> None:
        self._state = state
        self._endings = endings

    # -- requests

    def end(self, node: int, request: Any, now: float) -> answers.Ended:
        """EndTxnRequest, at the version it is pinned to."""
        version = int(request._max_version)
        found = self._entry(request.transactional_id, node, now)
        if isinstance(found, ErrorCode):
            return answers.Ended(error_code=found)
        shard, entry, leads = found
        if entry is None:
            return answers.Ended(error_code=ErrorCode.INVALID_PRODUCER_ID_MAPPING)
        commit = bool(request.committed)
        decided = end(entry, request.producer_id, request.producer_epoch, commit=commit, version=version)
        if isinstance(decided, ErrorCode):
            if decided is ErrorCode.PRODUCER_FENCED and version < 2:
                decided = ErrorCode.INVALID_PRODUCER_EPOCH
            known = version >= 5 and decided is ErrorCode.NONE
            return answers.Ended(
                error_code=decided,
                producer_id=entry.producer_id if known else -1,
                producer_epoch=entry.epoch if known else -1,
            )
        if not leads:
            return answers.Ended(error_code=ErrorCode.NOT_COORDINATOR)
        raises = version >= 5
        following = self._state.next_producer_id() if raises and entry.exhausted else -1
        entry.prepare(commit=decided is Change.COMMIT, raises=raises, next_producer_id=following, now=now)
        self._endings.send_markers(shard, entry, now)
        if not raises:
            return answers.Ended(error_code=ErrorCode.NONE)
        return answers.Ended(error_code=ErrorCode.NONE, producer_id=entry.producer_id, producer_epoch=entry.epoch)

    def initialise(self, node: int, request: Any, now: float) -> answers.Initialised:
        """InitProducerIdRequest."""
        if not request.transactional_id:
            return answers.Initialised(
                error_code=ErrorCode.NONE, producer_id=self._state.next_producer_id(), producer_epoch=0
            )
        if not 0 < request.transaction_timeout_ms <= self._state.settings.max_timeout_ms:
            return answers.Initialised(error_code=ErrorCode.INVALID_TRANSACTION_TIMEOUT)
        found = self._entry(request.transactional_id, node, now)
        if isinstance(found, ErrorCode):
            return answers.Initialised(error_code=found)
        shard, entry, leads = found
        if entry is None:
            if not leads:
                return answers.Initialised(error_code=ErrorCode.NOT_COORDINATOR)
            entry = shard.table[request.transactional_id] = Entry(
                id=request.transactional_id,
                producer_id=self._state.next_producer_id(),
                epoch=self._state.settings.last_used_epoch(request.transactional_id),
                timeout_ms=request.transaction_timeout_ms,
                updated=now,
            )
        expected = (request.producer_id, request.producer_epoch) if request.producer_id >= 0 else None
        decided = initialise(entry, expected)
        if isinstance(decided, ErrorCode):
            return answers.Initialised(error_code=decided)
        if not leads:
            return answers.Initialised(error_code=ErrorCode.NOT_COORDINATOR)
        if decided is Change.FENCE:
            self._endings.fence(shard, entry, now)
            return answers.Initialised(error_code=ErrorCode.CONCURRENT_TRANSACTIONS)
        entry.begin_anew(
            rotate_to=self._state.next_producer_id() if decided is Change.ROTATE else None,
            expected_epoch=None if expected is None else expected[1],
            keep=decided is Change.KEEP,
            timeout_ms=request.transaction_timeout_ms,
            now=now,
        )
        return answers.Initialised(error_code=ErrorCode.NONE, producer_id=entry.producer_id, producer_epoch=entry.epoch)

    def add_partitions(self, node: int, request: AddPartitions, now: float) -> answers.Coded:
        return answers.Coded(error_code=self._enlist(node, request, request.partitions, now))

    def add_named_partitions(self, node: int, request: Any, now: float) -> answers.Enlisted:
        """AddPartitionsToTxnRequest of a client, which has one transaction."""
        partitions = [
            (str(topic.name), int(number)) for topic in request.v3_and_below_topics for number in topic.partitions
        ]
        asked = AddPartitions(
            transactional_id=str(request.v3_and_below_transactional_id),
            producer_id=int(request.v3_and_below_producer_id),
            producer_epoch=int(request.v3_and_below_producer_epoch),
            partitions=partitions,
        )
        one = answers.EnlistedPartition(partition_error_code=self.add_partitions(node, asked, now).error_code)
        return answers.Enlisted(results_by_topic_v3_and_below=[answers.EnlistedTopic(results_by_partition=[one])])

    def add_offsets(self, node: int, request: AddOffsets, now: float) -> answers.Coded:
        number = shard_of(request.group_id, len(self._state.groups))
        return answers.Coded(error_code=self._enlist(node, request, [(OFFSETS_TOPIC, number)], now))

    def describe(self, node: int, request: Any, now: float) -> answers.TransactionDescriptions:
        """DescribeTransactionsRequest."""
        return answers.TransactionDescriptions(
            transaction_states=[self._described(name, node, now) for name in request.transactional_ids]
        )

    def list(self, node: int, request: Any, now: float) -> answers.ListedTransactions:
        """ListTransactionsRequest: the ids that `node` coordinates."""
        filters = set(request.state_filters)
        pattern = _pattern(request.transactional_id_pattern) if request.transactional_id_pattern else None
        listed: list[answers.ListedTransaction] = []
        for shard in self._state.transactions:
            served = shard.serve(node, now)
            if served is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return answers.ListedTransactions(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            if isinstance(served, ErrorCode):
                continue
            for entry in list(served[0].values()):
                if (filters and entry.state.value not in filters) or self._expired(entry, now):
                    continue
                if pattern is not None and not pattern.fullmatch(entry.id):
                    continue
                if request.producer_id_filters and entry.producer_id not in request.producer_id_filters:
                    continue
                listed.append(
                    answers.ListedTransaction(
                        transactional_id=entry.id,
                        producer_id=entry.producer_id,
                        transaction_state=entry.state.value,
                    )
                )
        return answers.ListedTransactions(
            error_code=ErrorCode.NONE, unknown_state_filters=sorted(filters - _NAMED), transaction_states=listed
        )

    # -- called by brokers that append

    def enlisted(
        self, transactional_id: str, producer_id: int, epoch: int, partition: Partition, now: float
    ) -> ErrorCode:
        """Whether a batch for `partition` may be appended: NONE when the transaction is open and enlists it."""
        shard = self._state.transaction_shard(transactional_id)
        if not shard.ready(now):
            return ErrorCode.NOT_ENOUGH_REPLICAS
        entry = self._live(shard.table, transactional_id, now)
        if entry is None or entry.producer_id != producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        if entry.epoch != epoch:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        if entry.state in PREPARED:
            return ErrorCode.NOT_ENOUGH_REPLICAS
        return ErrorCode.NONE if partition in entry.partitions else ErrorCode.INVALID_TXN_STATE

    def enlist_implicitly(
        self, transactional_id: str, producer_id: int, epoch: int, partition: Partition, now: float
    ) -> ErrorCode:
        """Enlist `partition` for a batch that is about to be appended (transaction version 2)."""
        request = AddPartitions(
            transactional_id=transactional_id, producer_id=producer_id, producer_epoch=epoch, partitions=[partition]
        )
        code = self._enlist(self._state.transaction_shard(transactional_id).leader, request, [partition], now)
        if code is ErrorCode.PRODUCER_FENCED:
            return ErrorCode.INVALID_PRODUCER_EPOCH
        return ErrorCode.NOT_ENOUGH_REPLICAS if code in _COORDINATOR_AWAY else code

    # -- inside

    def _entry(
        self, transactional_id: str, node: int, now: float
    ) -> tuple[Shard[TransactionTable], Entry | None, bool] | ErrorCode:
        shard = self._state.transaction_shard(transactional_id)
        served = shard.serve(node, now)
        if isinstance(served, ErrorCode):
            return served
        table, leads = served
        return shard, self._live(table, transactional_id, now), leads

    def _live(self, table: TransactionTable, transactional_id: str, now: float) -> Entry | None:
        entry = table.get(transactional_id)
        if entry is not None and self._expired(entry, now):
            del table[transactional_id]
            return None
        return entry

    def _expired(self, entry: Entry, now: float) -> bool:
        """Whether the id was unused for so long that the last scan removed it."""
        settings = self._state.settings
        if now - entry.updated < settings.id_expiration_s or entry.state is State.ONGOING or entry.state in PREPARED:
            return False
        last_scan = math.floor(now / settings.id_expiration_scan_s) * settings.id_expiration_scan_s
        return entry.updated + settings.id_expiration_s <= last_scan

    def _enlist(
        self, node: int, request: AddPartitions | AddOffsets, partitions: Sequence[Partition], now: float
    ) -> ErrorCode:
        found = self._entry(request.transactional_id, node, now)
        if isinstance(found, ErrorCode):
            return found
        shard, entry, leads = found
        if entry is None:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        refused = entry.refuses(request.producer_id, request.producer_epoch)
        if refused is not ErrorCode.NONE:
            return refused
        if entry.state is State.ONGOING and entry.partitions.issuperset(partitions):
            return ErrorCode.NONE
        if not leads:
            return ErrorCode.NOT_COORDINATOR
        if entry.enlist(partitions, now):
            self._endings.watch(shard, entry)
        return ErrorCode.NONE

    def _described(self, name: str, node: int, now: float) -> answers.TransactionDescription:
        found = self._entry(name, node, now)
        if isinstance(found, ErrorCode):
            return answers.TransactionDescription(error_code=found, transactional_id=name)
        entry = found[1]
        if entry is None:
            return answers.TransactionDescription(
                error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND, transactional_id=name
            )
        topics: dict[str, list[int]] = {}
        for topic, number in sorted(entry.partitions):
            topics.setdefault(topic, []).append(number)
        return answers.TransactionDescription(
            error_code=ErrorCode.NONE,
            transactional_id=name,
            transaction_state=entry.state.value,
            transaction_timeout_ms=entry.timeout_ms,
            transaction_start_time_ms=round(entry.started * 1000) if entry.started >= 0 else -1,
            producer_id=entry.producer_id,
            producer_epoch=entry.epoch,
            topics=[answers.TopicPartitions(topic=topic, partitions=numbers) for topic, numbers in topics.items()],
        )


@lru_cache(maxsize=256)
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text)


_COORDINATOR_AWAY = (
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
)
