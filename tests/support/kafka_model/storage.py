"""The partitions' leaders and the group coordinators: records and offsets."""

from collections.abc import Callable
from typing import Any

from onceward.connections.codes import ErrorCode
from tests.support.kafka_model import answers
from tests.support.kafka_model.coordinators import TransactionCoordinators
from tests.support.kafka_model.placement import shard_of
from tests.support.kafka_model.settings import OFFSETS_TOPIC, CommitOffsets, Offset, Produce
from tests.support.kafka_model.state import ClusterState

__all__ = ["Appended", "Storage"]

Appended = Callable[[Produce, int, float], None]
"""Called for every batch appended for the first time: the request, its first offset, when."""


class Storage:
    """Requests about partitions and groups, on all brokers."""

    def __init__(self, state: ClusterState, coordinators: TransactionCoordinators) -> None:
        self._state = state
        self._coordinators = coordinators
        self.listeners: list[Appended] = []

    def produce(self, node: int, request: Produce, now: float) -> answers.Produced:
        log = self._state.log(request.partition)
        if log is None:
            return answers.Produced(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        if log.leader != node:
            return answers.Produced(error_code=ErrorCode.NOT_LEADER_OR_FOLLOWER)
        name, producer, epoch = request.transactional_id, request.producer_id, request.producer_epoch
        if name is not None and not log.in_transaction(producer, epoch):
            log.verifies(producer, epoch, request.sequence)
            check = self._coordinators.enlist_implicitly if request.implicit else self._coordinators.enlisted
            refused = check(name, producer, epoch, request.partition, now)
            if refused is not ErrorCode.NONE:
                return answers.Produced(error_code=refused)
        end = log.high_watermark
        code, offset = log.append(request, now)
        if code is ErrorCode.NONE and offset == end:
            for listener in self.listeners:
                listener(request, offset, now)
        return answers.Produced(error_code=code, base_offset=offset)

    def commit_in_transaction(self, node: int, request: CommitOffsets, now: float) -> answers.Coded:
        """TxnOffsetCommit."""
        served = self._state.group_shard(request.group_id).serve(node, now)
        if isinstance(served, ErrorCode):
            return answers.Coded(error_code=served)
        groups, leads = served
        if any(self._state.log(partition) is None for partition in request.offsets):
            return answers.Coded(error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        name, producer, epoch = request.transactional_id, request.producer_id, request.producer_epoch
        if not groups.in_transaction(producer, epoch):
            partition = (OFFSETS_TOPIC, shard_of(request.group_id, len(self._state.groups)))
            check = self._coordinators.enlist_implicitly if request.implicit else self._coordinators.enlisted
            refused = check(name, producer, epoch, partition, now)
            if refused is ErrorCode.NOT_ENOUGH_REPLICAS:
                refused = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            if refused is not ErrorCode.NONE:
                return answers.Coded(error_code=refused)
        if not leads:
            return answers.Coded(error_code=ErrorCode.NOT_COORDINATOR)
        groups.commit_in_transaction(request.group_id, request.offsets, producer, epoch, now)
        return answers.Coded(error_code=ErrorCode.NONE)

    def txn_offset_commit(self, node: int, request: Any, now: float) -> answers.OffsetsCommitted:
        """TxnOffsetCommitRequest, at the version it is pinned to."""
        offsets = {
            (str(topic.name), int(partition.partition_index)): Offset(
                offset=int(partition.committed_offset), metadata=str(partition.committed_metadata or "")
            )
            for topic in request.topics
            for partition in topic.partitions
        }
        commit = CommitOffsets(
            transactional_id=str(request.transactional_id),
            group_id=str(request.group_id),
            producer_id=int(request.producer_id),
            producer_epoch=int(request.producer_epoch),
            offsets=offsets,
            implicit=int(request._max_version) >= 5,
        )
        code = self.commit_in_transaction(node, commit, now).error_code
        return answers.OffsetsCommitted(
            topics=[
                answers.TopicCode(
                    name=str(topic.name),
                    partitions=[
                        answers.PartitionCode(partition_index=int(partition.partition_index), error_code=code)
                        for partition in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def commit(self, node: int, request: Any, now: float) -> answers.OffsetsCommitted:
        """OffsetCommitRequest, of a group without members."""
        served = self._state.group_shard(request.group_id).serve(node, now)
        refused = (
            served if isinstance(served, ErrorCode) else ErrorCode.NONE if served[1] else ErrorCode.NOT_COORDINATOR
        )
        topics = []
        for topic in request.topics:
            codes = []
            for partition in topic.partitions:
                where = (str(topic.name), int(partition.partition_index))
                code = refused
                if code is ErrorCode.NONE and self._state.log(where) is None:
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if code is ErrorCode.NONE and not isinstance(served, ErrorCode):
                    offset = Offset(
                        offset=int(partition.committed_offset), metadata=str(partition.committed_metadata or "")
                    )
                    served[0].commit(str(request.group_id), {where: offset}, now)
                codes.append(answers.PartitionCode(partition_index=where[1], error_code=code))
            topics.append(answers.TopicCode(name=str(topic.name), partitions=codes))
        return answers.OffsetsCommitted(topics=topics)

    def fetch(self, node: int, request: Any, now: float) -> answers.OffsetsFetched:
        """OffsetFetchRequest from version 8."""
        return answers.OffsetsFetched(
            groups=[self._fetched(node, group, bool(request.require_stable), now) for group in request.groups]
        )

    def list_groups(self, node: int, _request: Any, now: float) -> answers.Groups:
        """ListGroupsRequest: the groups that `node` coordinates."""
        found: list[str] = []
        for shard in self._state.groups:
            served = shard.serve(node, now)
            if served is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                return answers.Groups(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
            if not isinstance(served, ErrorCode):
                found += served[0].names()
        return answers.Groups(error_code=ErrorCode.NONE, groups=[answers.ListedGroup(group_id=name) for name in found])

    def delete_groups(self, node: int, request: Any, now: float) -> answers.DeletedGroups:
        """DeleteGroupsRequest."""
        results = []
        for group in request.groups_names:
            served = self._state.group_shard(group).serve(node, now)
            if isinstance(served, ErrorCode):
                code = served
            else:
                code = served[0].delete(group) if served[1] else ErrorCode.NOT_COORDINATOR
            results.append(answers.DeletedGroup(group_id=group, error_code=code))
        return answers.DeletedGroups(results=results)

    def delete_topic(self, topic: str) -> None:
        """Delete the topic's records and offsets."""
        self._state.topics.pop(topic, None)
        for shard in self._state.groups:
            shard.table.delete_topic(topic)

    def _fetched(self, node: int, group: Any, stable: bool, now: float) -> answers.GroupOffsets:
        served = self._state.group_shard(group.group_id).serve(node, now)
        if isinstance(served, ErrorCode):
            return answers.GroupOffsets(group_id=group.group_id, error_code=served)
        settings = self._state.settings
        last_scan = now - now % settings.offsets_scan_s
        expired_before = last_scan - settings.offsets_retention_minutes * 60
        return answers.GroupOffsets(
            group_id=group.group_id,
            error_code=ErrorCode.NONE,
            topics=[
                answers.OffsetTopic(
                    name=topic.name,
                    partitions=[
                        _partition(
                            number,
                            served[0].fetch(group.group_id, (topic.name, number), expired_before, stable=stable),
                        )
                        for number in topic.partition_indexes
                    ],
                )
                for topic in group.topics
            ],
        )


def _partition(number: int, found: Offset | ErrorCode | None) -> answers.PartitionOffset:
    if isinstance(found, Offset):
        return answers.PartitionOffset(
            partition_index=number, committed_offset=found.offset, metadata=found.metadata, error_code=ErrorCode.NONE
        )
    code = ErrorCode.NONE if found is None else found
    return answers.PartitionOffset(partition_index=number, committed_offset=-1, metadata="", error_code=code)
