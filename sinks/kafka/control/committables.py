"""The committable of this sink as a document: ``kafka-transaction``, version 1.

It holds what any process needs to end the transaction on the right cluster, to prove its outcome, and to name its
records or write exactly them again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from onceward.common.errors import HaltedError
from onceward.protocol.values import Author, Committable, Document, JsonObject
from onceward.sinks.kafka.control.control_plane import ControlPlane
from onceward.sinks.kafka.control.transactions import Transaction
from onceward.sinks.kafka.documents import KIND, VERSION, require_own

__all__ = ["KIND", "VERSION", "KafkaCommittable", "TopicRecords", "elsewhere"]


@dataclass(frozen=True, kw_only=True)
class TopicRecords:
    """What one transaction wrote to one topic."""

    records: int
    partitions: tuple[int, ...]
    """Partitions that were enlisted at the broker, sorted."""
    id: str = ""
    """The topic id when the generation began; empty if unknown."""
    count: int = 0
    """The topic's number of partitions when the generation began; 0 if unknown."""


@dataclass(frozen=True, kw_only=True)
class KafkaCommittable:
    """One pre-committed slot of a Kafka sink."""

    slot: int
    checkpoint: int
    cluster_name: str
    cluster_id: str
    transaction: Transaction
    token: str
    """The receipt's token, unique to this transaction."""
    topics: Mapping[str, TopicRecords]
    records: int
    bytes: int
    """Of keys and values."""
    inputs: Sequence[JsonObject]
    """The splits whose records the transaction contains: a replay reads them. Slots of a shuffle share one list, which
    is sent and stored once."""
    pre_committed: datetime
    """Wall clock of the driver, before the decision: the retention of receipts counts from a later time."""
    timeout: timedelta = field(default=timedelta(0))
    """The transaction timeout: the broker aborts this long after the first partition was enlisted."""
    began: datetime | None = None
    """When the first partition was enlisted, by the broker's clock; None if unknown."""
    replayable: bool = False
    """Whether it holds exactly the records of its single input: rewriting that input then replaces the slot."""
    input_text: str = ""
    """What the source says of ``inputs``, for people; empty if an earlier release wrote the document."""

    def to_committable(self) -> Committable:
        return Committable(slot=self.slot, document=Document(kind=KIND, version=VERSION, body=self._body()))

    def _body(self) -> dict[str, Any]:
        return {
            "cluster": {"name": self.cluster_name, "id": self.cluster_id},
            "checkpoint": self.checkpoint,
            "transactional_id": self.transaction.id,
            "producer_id": self.transaction.producer_id,
            "epoch": self.transaction.epoch,
            "end_txn_version": self.transaction.version,
            "token": self.token,
            "topics": {
                name: {
                    "records": topic.records,
                    "partitions": list(topic.partitions),
                    "id": topic.id,
                    "partition_count": topic.count,
                }
                for name, topic in sorted(self.topics.items())
            },
            "records": self.records,
            "bytes": self.bytes,
            "inputs": self.inputs,
            "pre_committed_ms": int(self.pre_committed.timestamp() * 1000),
            "transaction_timeout_ms": int(self.timeout.total_seconds() * 1000),
            "began_ms": None if self.began is None else int(self.began.timestamp() * 1000),
            "replayable": self.replayable,
            "input_text": self.input_text,
        }

    @classmethod
    def of(cls, committable: Committable) -> "KafkaCommittable":
        """Parse a document. Raises HaltedError for a kind, version or content that this release does not know."""
        document = committable.document
        if document.kind != KIND or document.version != VERSION:
            raise _unreadable(committable, f"this release reads {KIND} version {VERSION}")
        try:
            return _read(committable.slot, document.body)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise _unreadable(committable, f"its content is damaged ({error!r})") from error

    @classmethod
    def own(cls, committable: Committable, author: Author) -> "KafkaCommittable":
        """Parse a document whose transaction is to be ended. Raises HaltedError like :meth:`of`, and if the
        transaction is not one of ``author``'s."""
        handle = cls.of(committable)
        try:
            require_own(handle.transaction.id, author)
        except ValueError as error:
            raise HaltedError(
                f"The committable of slot {committable.slot} is not to be trusted: {error}. No transaction was ended "
                "for it. Find out which process acknowledged it: it acts for this job. If the store was damaged, put "
                "back a copy of it."
            ) from None
        return handle


def elsewhere(control: ControlPlane, handles: Sequence[KafkaCommittable]) -> dict[int, str]:
    """Return those whose transaction is on another cluster than the one that answers now, with the reason, by slot: it
    is found by the cluster's id, never by its address. Raises ControlPlaneError if no broker answers."""
    here = control.cluster_id()
    return {
        one.slot: (
            f"the transaction is on cluster {one.cluster_name!r} with id {one.cluster_id}, but the cluster reached now "
            f"is another ({control.cluster.name!r} is {here}); nothing was asked there"
        )
        for one in handles
        if one.cluster_id != here
    }


def _read(slot: int, body: JsonObject) -> KafkaCommittable:
    return KafkaCommittable(
        slot=slot,
        checkpoint=int(body["checkpoint"]),
        cluster_name=str(body["cluster"]["name"]),
        cluster_id=str(body["cluster"]["id"]),
        transaction=Transaction(
            id=str(body["transactional_id"]),
            producer_id=int(body["producer_id"]),
            epoch=int(body["epoch"]),
            version=int(body["end_txn_version"]),
        ),
        token=str(body["token"]),
        topics={
            str(name): TopicRecords(
                records=int(topic["records"]),
                partitions=tuple(int(number) for number in topic["partitions"]),
                id=str(topic.get("id", "")),
                count=int(topic.get("partition_count", 0)),
            )
            for name, topic in body["topics"].items()
        },
        records=int(body["records"]),
        bytes=int(body["bytes"]),
        inputs=_splits(body["inputs"]),
        pre_committed=datetime.fromtimestamp(int(body["pre_committed_ms"]) / 1000, tz=UTC),
        timeout=timedelta(milliseconds=int(body["transaction_timeout_ms"])),
        # documents of earlier releases lack these; a slot of unknown age or content is never replayed
        began=None if body.get("began_ms") is None else datetime.fromtimestamp(int(body["began_ms"]) / 1000, tz=UTC),
        replayable=bool(body.get("replayable", False)),
        input_text=str(body.get("input_text", "")),
    )


def _splits(found: Any) -> Sequence[JsonObject]:
    """Return the list itself: a copy for each slot of a shuffle would cost slots x ranges at each read."""
    if not isinstance(found, list) or not {*map(type, found)} <= {dict}:
        raise TypeError("inputs: not a list of objects")
    return found


def _unreadable(committable: Committable, why: str) -> HaltedError:
    document = committable.document
    return HaltedError(
        f"The committable of slot {committable.slot} is a {document.kind!r} document of version {document.version}: "
        f"{why}. Its transaction was neither committed nor aborted. Use the release that wrote it, or a newer one."
    )
