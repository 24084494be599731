"""Writes the markers that Kafka has skipped (docs/protocol.md#skipped-markers).

A transaction coordinator that ends a transaction while it knows no leader of a partition takes the partition for
deleted: it writes no marker there and reports the end as complete (Kafka 4.3, ``TransactionMarkerChannelManager``). The
part *hangs*: no reader of committed records gets past it, and nothing at the brokers ever ends it.

A marker of any later epoch of the same producer ends the part. So a further transaction of the same id, over the same
partitions and without records, finishes the first one with the outcome that was decided. No other transaction can be
hit: an id belongs to one worker, which uses it again only once its last checkpoint is settled, and a checkpoint with a
part that hangs is not.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

from onceward.connections.codes import ErrorCode
from onceward.coordinator.printable import logger
from onceward.sinks.kafka.control.clock import Clock
from onceward.sinks.kafka.control.control_plane import ControlPlane, CoordinatorKind, NoAnswer, Request
from onceward.sinks.kafka.control.logs import PartitionId
from onceward.sinks.kafka.control.parts import open_parts
from onceward.sinks.kafka.control.transactions import (
    OVER,
    Code,
    State,
    Transaction,
    Transactions,
    TransactionView,
    code_of,
    end_txn_version,
)
from onceward.sinks.kafka.errors import ControlPlaneError

__all__ = ["LOOK_INTERVAL_S", "Hanging", "finish", "finish_abandoned", "hangs", "is_over", "unfinishable"]

_log = logger("onceward.kafka")

LOOK_INTERVAL_S = 2.1
"""Time between two looks: a stale coordinator or leader gives wrong negative answers for some seconds (KAFKA-21181)."""

_LAST_EPOCH = 32_766
"""InitProducerId gives an id whose epoch has reached this another producer id, whose markers end nothing. A transaction
may begin at this epoch, too."""


@dataclass(frozen=True, kw_only=True)
class Hanging:
    """A transaction that has ended, and lacks markers."""

    id: str
    producer_id: int
    places: Collection[PartitionId] = ()
    """The output partitions to mark."""
    group: str | None = None
    """The consumer group whose offsets it commits."""
    timeout_ms: int = 60_000
    """Of the transaction that writes the markers. If this process dies in the middle, the next one has this long to
    complete it before the brokers abort it."""


def is_over(producer_id: int, epoch: int, view: TransactionView) -> bool:
    """Return whether the coordinator reports that the transaction of this pair has ended, with all markers written.

    A transaction at a later epoch that is open counts, too: nothing but an interrupted :func:`finish` begins one.
    """
    if view.code != ErrorCode.NONE:
        return view.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    if view.producer_id != producer_id:
        return True
    return view.state in OVER if view.epoch == epoch else view.epoch > epoch and view.state in OVER | {State.ONGOING}


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
    if view.state is not State.ONGOING and epoch < _LAST_EPOCH:
        started: InitProducerIdResponse | NoAnswer = send(
            InitProducerIdRequest(
                transactional_id=one.id,
                transaction_timeout_ms=one.timeout_ms,
                producer_id=view.producer_id,  # refused if the id has moved on since it was described
                producer_epoch=view.epoch,
                max_version=5,
            )
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


def finish_abandoned(
    control: ControlPlane, job: str, topics: Collection[str], keep: Collection[str], newest: int, clock: Clock
) -> list[str]:
    """End what hangs in ``topics`` of ids that have no committable to settle: of transactions that were aborted, or
    timed out. ``keep``: ids that are settled elsewhere; ``newest``: the generation of this process, which touches none
    of a later one. Returns the ids that were ended. Raises ControlPlaneError.

    One whose commit the coordinator still reports is committed. One of which it reports only a later epoch was fenced:
    an id of a committed checkpoint is used again only when all its markers are there.
    """
    found = _abandoned(control, job, topics, keep, newest)
    if not found:
        return []
    clock.wait(LOOK_INTERVAL_S)
    ended: list[str] = []
    for name, (one, _) in found.items():
        now = _abandoned(control, job, topics, keep, newest).get(name)
        if now is None or now[0] != one:
            continue
        commit = now[1].state is State.COMPLETE_COMMIT
        if finish(control, one, now[1], commit=commit) == ErrorCode.NONE:
            ended.append(name)
            _log.warning(
                "%s had been %s without a marker in %s, so no reader got past it: the brokers had skipped it, as they "
                "do without a leader. It is written now.",
                name,
                "committed" if commit else "aborted",
                ", ".join(f"{topic}-{number}" for topic, number in sorted(one.places)),
            )
    return ended


def _abandoned(
    control: ControlPlane, job: str, topics: Collection[str], keep: Collection[str], newest: int
) -> dict[str, tuple[Hanging, TransactionView]]:
    """Return what seems to hang, by id: the coordinator is asked first, because its markers precede its report."""
    open_ = open_parts(control, topics)
    if not open_:
        return {}
    transactions = Transactions(control)
    ((ids, _),) = control.run(transactions.listing_open_ids(job, states=OVER, producers=open_.keys()))
    names = [str(one) for one in ids if one.generation <= newest and str(one) not in keep]
    views = transactions.describe(names)
    open_ = open_parts(control, topics) if names else {}
    found: dict[str, tuple[Hanging, TransactionView]] = {}
    for name, view in views.items():
        parts = open_.get(view.producer_id, {})
        if view.code == ErrorCode.NONE and view.state in OVER and parts:
            found[name] = Hanging(id=name, producer_id=view.producer_id, places=frozenset(parts), group=name), view
    return found


def hangs(control: ControlPlane, evidence: str, places: Mapping[PartitionId, int], why: str) -> str:
    """Describe parts that stay open, and what a person can do. ``places``: with the first offset of each part."""
    (topic, number), offset = min(places.items())
    servers = control.cluster.bootstrap_servers
    return (
        f"{evidence}; but the brokers have skipped its markers, readers of committed records stop at "
        + ", ".join(f"{name}-{part} offset {first}" for (name, part), first in sorted(places.items()))
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
