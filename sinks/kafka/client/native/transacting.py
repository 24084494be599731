"""The requests of a transaction, to and from bytes.

Partitions are always added before the first batch is sent to them, as clients of transaction.version 0 and 1 do. All
brokers take that. Version 2 lets the leader add them; but then leaders that add at the same moment are answered with
CONCURRENT_TRANSACTIONS, and the epoch that ends a transaction is not the one that it was begun with.
"""

from collections.abc import Collection
from typing import Final, NamedTuple

from onceward.connections.sockets.coordinators import Coordinated, CoordinatorOf, Kind
from onceward.connections.sockets.encoding import Decoder, Encoder, GarbledError
from onceward.connections.sockets.requests import Api, Content, Request, UnspokenError
from onceward.sinks.kafka.timeouts import NEVER_MS

__all__ = ["AddOffsets", "AddPartitions", "CommitOffset", "EndTransaction", "InitProducerId", "Producer"]

_WITH_EXPECTED = 3
"""The version of InitProducerId that names the id and epoch that the caller has; and that of TxnOffsetCommit that names
a member."""
_NEVER: Final = 6
"""The version of InitProducerId for transactions that never expire (KIP-939)."""
_NOT_ATTEMPTED: Final = 55
"""Another partition of the request was refused."""
_UNKNOWN_PARTITION: Final = 3


class Producer(NamedTuple):
    """What brokers know a producer by."""

    id: int
    epoch: int


NO_ONE = Producer(-1, -1)


class InitProducerId(Coordinated):
    """Takes over a transactional id. A lost request is not sent again: the first one might come after the second, and
    abort what was written meanwhile."""

    api = Api.INIT_PRODUCER_ID
    repeats_lost = False
    producer = NO_ONE

    def __init__(self, identifier: str, timeout_ms: int) -> None:
        """``timeout_ms``: with `NEVER_MS`, brokers never abort the transactions."""
        super().__init__(CoordinatorOf(Kind.TRANSACTION, identifier))
        self._timeout_ms = timeout_ms
        self.highest = _NEVER if timeout_ms == NEVER_MS else _NEVER - 1

    def encode(self, version: int, *, flexible: bool) -> Content:
        if self.highest == _NEVER > version:
            raise UnspokenError(
                "the broker does not take transactions that never expire (InitProducerId 6); it needs Kafka 4.1 with "
                "transaction.two.phase.commit.enable and unstable.api.versions.enable"
            )
        out = Encoder(flexible=flexible)
        out.text(self.to.name)
        out.put("i", self._timeout_ms)
        if version >= _WITH_EXPECTED:
            out.put("qh", *NO_ONE)
        if version >= _NEVER:
            out.put("bb", True, False)  # the transaction is prepared by its writer; an open one is not kept
        out.no_tags()
        return [out.data]

    def read(self, version: int, answer: Decoder) -> int:
        _throttle, code, number, epoch = answer.take("ihqh")
        self.producer = Producer(number, epoch)
        return code


class NewProducerId(Request):
    """Asks any broker for an id without transactions."""

    api = Api.INIT_PRODUCER_ID

    def __init__(self) -> None:
        self.code: int | None = None
        """None: not answered."""
        self.sent = False
        self.producer = NO_ONE

    def encode(self, version: int, *, flexible: bool) -> Content:
        out = Encoder(flexible=flexible)
        if flexible:
            out.uvarint(0)
        else:
            out.put("h", -1)
        out.put("i", 0)
        if version >= _WITH_EXPECTED:
            out.put("qh", *NO_ONE)
        out.no_tags()
        return [out.data]

    def answered(self, version: int, answer: Decoder) -> None:
        _throttle, self.code, number, epoch = answer.take("ihqh")
        self.producer = Producer(number, epoch)

    def lost(self, why: str) -> None:
        self.sent = False


def _codes(answer: Decoder) -> dict[tuple[str | None, int], int]:
    """Read the error codes of partitions."""
    answer.take("i")  # throttle
    codes: dict[tuple[str | None, int], int] = {}
    for _ in answer.array():
        topic = answer.text()
        for _ in answer.array():
            number, code = answer.take("ih")
            answer.tags()
            codes[topic, number] = code
        answer.tags()
    return codes


class _OfTransaction(Coordinated):
    """A request about the open transaction of an id."""

    def __init__(self, identifier: str, producer: Producer) -> None:
        super().__init__(CoordinatorOf(Kind.TRANSACTION, identifier))
        self._producer = producer

    def _begin(self, out: Encoder) -> None:
        out.text(self.to.name)
        out.put("qh", *self._producer)


class AddPartitions(_OfTransaction):
    """Adds partitions to a transaction."""

    api = Api.ADD_PARTITIONS_TO_TXN

    def __init__(self, identifier: str, producer: Producer, places: Collection[tuple[str, int]]) -> None:
        super().__init__(identifier, producer)
        self.places = places

    def encode(self, version: int, *, flexible: bool) -> Content:
        out = Encoder(flexible=flexible)
        self._begin(out)
        topics: dict[str, list[int]] = {}
        for topic, number in self.places:
            topics.setdefault(topic, []).append(number)
        out.array(len(topics))
        for topic, numbers in topics.items():
            out.text(topic)
            out.array(len(numbers))
            out.put(f"{len(numbers)}i", *numbers)
            out.no_tags()
        out.no_tags()
        return [out.data]

    def read(self, version: int, answer: Decoder) -> int:
        codes = _codes(answer)
        if not codes.keys() >= {*self.places}:
            raise GarbledError("it does not have each partition that was to be added")
        errors = {*codes.values()} - {0, _NOT_ATTEMPTED}
        return min(errors, default=0)

    def later(self, code: int) -> bool:
        return code == _UNKNOWN_PARTITION  # its broker may not know it yet; the slot's limit ends that


class AddOffsets(_OfTransaction):
    """Adds a group's offsets to a transaction."""

    api = Api.ADD_OFFSETS_TO_TXN

    def __init__(self, identifier: str, producer: Producer, group: str) -> None:
        super().__init__(identifier, producer)
        self._group = group

    def encode(self, version: int, *, flexible: bool) -> Content:
        out = Encoder(flexible=flexible)
        self._begin(out)
        out.text(self._group)
        out.no_tags()
        return [out.data]

    def read(self, version: int, answer: Decoder) -> int:
        return answer.take("ih")[1]


class CommitOffset(Coordinated):
    """Writes an offset of a group that has no members, in a transaction."""

    api = Api.TXN_OFFSET_COMMIT

    def __init__(
        self, identifier: str, producer: Producer, group: str, place: tuple[str, int], offset: int, metadata: str
    ) -> None:
        super().__init__(CoordinatorOf(Kind.GROUP, group))
        self._identifier, self._producer = identifier, producer
        self._place, self._offset, self._metadata = place, offset, metadata

    def encode(self, version: int, *, flexible: bool) -> Content:
        out = Encoder(flexible=flexible)
        out.text(self._identifier)
        out.text(self.to.name)
        out.put("qh", *self._producer)
        if version >= _WITH_EXPECTED:
            out.put("i", -1)  # generation
            out.text("")  # member
            out.uvarint(0)  # instance
        topic, number = self._place
        out.array(1)
        out.text(topic)
        out.array(1)
        out.put("iqi", number, self._offset, -1)
        out.text(self._metadata)
        for _partition_topic_and_request in range(3):
            out.no_tags()
        return [out.data]

    def read(self, version: int, answer: Decoder) -> int:
        codes = _codes(answer)
        if self._place not in codes:
            raise GarbledError("it does not have the partition of the offset")
        return codes[self._place]

    def later(self, code: int) -> bool:
        return code == _UNKNOWN_PARTITION


class EndTransaction(_OfTransaction):
    """Aborts a transaction."""

    api = Api.END_TXN

    def encode(self, version: int, *, flexible: bool) -> Content:
        out = Encoder(flexible=flexible)
        self._begin(out)
        out.put("b", False)
        out.no_tags()
        return [out.data]

    def read(self, version: int, answer: Decoder) -> int:
        return answer.take("ih")[1]
