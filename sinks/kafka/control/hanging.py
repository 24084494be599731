"""Writes the markers that Kafka has skipped (docs/protocol.md#skipped-markers).

A transaction coordinator that ends a transaction while it knows no leader of a partition takes the partition for
deleted: it writes no marker there and reports the end as complete (Kafka 4.3, ``TransactionMarkerChannelManager``). The
part *hangs*: no reader of committed records gets past it, and nothing at the brokers ever ends it.

A further marker of the same producer ends the part. So a further transaction of the same id, over the same partitions
and without records, finishes the first one with the outcome that was decided. No other transaction can be hit: an id
belongs to one worker, which uses it again only once its last checkpoint is settled, and a checkpoint with a part that
hangs is not.

That transaction begins at the pair that the coordinator reports. InitProducerId would begin it at the next epoch, and
abort it, together with the part, if it arrived a second time or another process sent it as well: it compares no epoch
with that of an open transaction (Kafka 4.3, ``TransactionCoordinator``).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    InitProducerIdResponse,
)

from onceward.connections.codes import ErrorCode
from onceward.sinks.kafka.control.control_plane import ControlPlane, CoordinatorKind, NoAnswer, Request
from onceward.sinks.kafka.control.logs import PartitionId
from onceward.sinks.kafka.control.transactions import (
    OVER,
    Code,
    State,
    Transaction,
    Transactions,
    TransactionView,
    code_of,
    end_txn_version,
    next_epoch_request,
)
from onceward.sinks.kafka.errors import ControlPlaneError

__all__ = ["LAST_EPOCH", "Hanging", "finish", "hangs", "is_over", "unfinishable"]

LAST_EPOCH = 32_766
"""InitProducerId gives an id whose epoch has reached this another producer id, whose markers end nothing. A transaction
may begin at this epoch, too."""


@dataclass(frozen=True, kw_only=True)
class Hanging:
    """A transaction that has ended, and lacks markers."""

    id: str
    producer_id: int
    places: Mapping[PartitionId, int] = field(default_factory=dict)
    """The output partitions to mark, with the offset of the first record there."""
    group: str | None = None
    """The consumer group whose offsets it commits."""
    timeout_ms: int | None = None
    """Of the transaction that writes the marker of a claim, where it says what was decided. Only InitProducerId can
    set it."""


def is_over(producer_id: int, epoch: int, view: TransactionView, *, ended: bool = False) -> bool:
    """Return whether the coordinator reports that the transaction of this pair has ended, with all markers written.

    A transaction at a later epoch that is open counts, too: nothing but an interrupted :func:`finish` begins one.
    ``ended``: it is known that this one has ended. If the pair is open, a late request has reopened it (KIP-890).
    """
    if view.code != ErrorCode.NONE:
        return view.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    if view.producer_id != producer_id:
        return True
    if view.epoch < epoch:
        return False
    return view.state in OVER or (view.state is State.ONGOING and (ended or view.epoch > epoch))


def unfinishable(one: Hanging, view: TransactionView) -> str | None:
    """Return why no marker of this id can end what hangs; None if one can."""
    if view.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
        return "the brokers have forgotten its transactional id"
    if view.code == ErrorCode.NONE and view.producer_id != one.producer_id:
        return f"its transactional id has another producer id now ({view.producer_id})"
    return None


def finish(control: ControlPlane, one: Hanging, view: TransactionView, *, commit: bool) -> Code:
    """Write the missing markers with the decided outcome, once. ``view``: asked a moment ago, :func:`is_over` and not
    :func:`unfinishable`. Returns the last code: NONE = the brokers have accepted the end, so look again."""
    kind = CoordinatorKind.TRANSACTION
    try:
        version = end_txn_version(control)
    except ControlPlaneError as error:
        return NoAnswer(why=str(error))
    located = control.locate(kind, [one.id])

    def send(request: Request) -> Any:
        return control.send_located(kind, {one.id: request}, located=located)[one.id]

    epoch = view.epoch
    if epoch >= LAST_EPOCH:
        version = min(4, version)  # version 5 would take the producer id
    if one.timeout_ms is not None and view.state is not State.ONGOING and epoch < LAST_EPOCH:
        started: InitProducerIdResponse | NoAnswer = send(
            next_epoch_request(one.id, timeout_ms=one.timeout_ms, after=(view.producer_id, view.epoch))
        )
        if (code := code_of(started)) != ErrorCode.NONE:
            return code
        assert not isinstance(started, NoAnswer)
        if int(started.producer_id) != one.producer_id:
            return ErrorCode.INVALID_PRODUCER_ID_MAPPING
        epoch = int(started.producer_epoch)
    if one.places:
        topic = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        answer: AddPartitionsToTxnResponse | NoAnswer = send(
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=one.id,
                v3_and_below_producer_id=one.producer_id,
                v3_and_below_producer_epoch=epoch,
                v3_and_below_topics=[
                    topic(name=name, partitions=numbers) for name, numbers in _by_topic(one.places).items()
                ],
                max_version=3,  # later versions are for brokers
            )
        )
        if (code := _enlisted(answer)) != ErrorCode.NONE:
            return code
    if one.group is not None:
        added: AddOffsetsToTxnResponse | NoAnswer = send(
            AddOffsetsToTxnRequest(
                transactional_id=one.id,
                producer_id=one.producer_id,
                producer_epoch=epoch,
                group_id=one.group,
                max_version=3,
            )
        )
        if (code := code_of(added)) != ErrorCode.NONE:
            return code
    ended = Transaction(id=one.id, producer_id=one.producer_id, epoch=epoch, version=version)
    return Transactions(control).end([ended], commit=commit, located=located)[one.id]


def hangs(control: ControlPlane, evidence: str, one: Hanging, why: str) -> str:
    """Describe parts that stay open, and what a person can do."""
    (topic, number), offset = min(one.places.items())
    servers = control.cluster.bootstrap_servers
    return (
        f"{evidence}; but the brokers have skipped its markers, readers of committed records stop at "
        + ", ".join(f"{name}-{part} offset {first}" for (name, part), first in sorted(one.places.items()))
        + f", and no marker can be written: {why}. The brokers' own tool discards these records: kafka-transactions.sh "
        f"--bootstrap-server {servers} abort --topic {topic} --partition {number} --start-offset {offset}"
    )


def _by_topic(places: Collection[PartitionId]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for name, number in sorted(places):
        topics.setdefault(name, []).append(number)
    return topics


def _enlisted(answer: AddPartitionsToTxnResponse | NoAnswer) -> Code:
    """Return the first code that is not NONE: if one partition is refused, none is enlisted."""
    if isinstance(answer, NoAnswer):
        return code_of(answer)
    codes = [
        int(one.partition_error_code)
        for topic in answer.results_by_topic_v3_and_below
        for one in topic.results_by_partition
    ]
    refused = [code for code in codes if code not in (ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED)]
    return next(iter(refused or codes), ErrorCode.NONE)
