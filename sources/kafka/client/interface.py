"""What reads records: one interface, whichever client does it. Errors are confluent-kafka's."""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from confluent_kafka import KafkaError, TopicPartition

__all__ = ["Consumer", "Event", "Fetched", "Headers", "Queues", "Records", "Throttling"]


@dataclass(frozen=True)
class Event:
    """Not a record: the end of a partition, or an error."""

    topic: str | None
    partition: int
    offset: int
    error: KafkaError


class Headers(NamedTuple):
    """The headers of a sequence of records."""

    counts: npt.NDArray[np.int64]
    """Number of headers per record."""
    names: Sequence[str] | pa.Array
    """Names for all records, in order."""
    contents: pa.Array
    """binary, one per name."""


class Records(Protocol):
    """Consecutive records of one partition, or those of several together. Valid while the client keeps them
    (:meth:`Consumer.fetched`); what the methods return remains valid."""

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> int:
        """-1: of several."""

    def together(self, parts: Sequence[Self]) -> Self:
        """Return the records of several partitions of a topic, one partition after the other."""

    def __len__(self) -> int: ...

    @property
    def partitions(self) -> npt.NDArray[np.int32]: ...

    @property
    def offsets(self) -> npt.NDArray[np.int64]: ...

    def last_epoch(self) -> int:
        """Return the leader epoch of the last record; epochs only grow. -1: unknown."""

    def below(self, offset: int) -> Self:
        """Return the records before ``offset``."""

    def keys(self) -> pa.Array:
        """Return the keys: binary, null where a record has none."""

    def values(self) -> pa.Array:
        """Return the values: binary, null for a tombstone."""

    def value_bytes(self) -> int:
        """Return the total bytes of all values, or what they took in the fetch if they are not wanted."""

    def timestamps(self) -> tuple[npt.NDArray[np.intc], npt.NDArray[np.int64]]:
        """Return types (rd_kafka_timestamp_type_t) and milliseconds since 1970."""

    def headers(self) -> Headers: ...


class Fetched(NamedTuple):
    """The result of one consumer call."""

    records: Sequence[Records]
    """Those of a partition in the order of its offsets."""
    events: Sequence[Event]
    """They follow the records."""


class Throttling:
    """For how long brokers have held requests of a client back."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def add(self, seconds: float) -> None:
        self.seconds += seconds

    def taken(self) -> float:
        """Return the seconds since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


class Queues(Protocol):
    """A queue for each partition of a consumer, so that one is read while another waits. What waits is not fetched
    twice. Closed before the consumer."""

    def fetched(self, place: tuple[str, int] | None, most: int) -> AbstractContextManager[Fetched]:
        """Yield at most ``most`` records of a partition that are there, and its events; for None, what belongs to no
        partition. As :meth:`Consumer.fetched`."""

    def waiting(self, place: tuple[str, int]) -> bool:
        """Return whether something of the partition has come and was not taken."""

    def wait(self, timeout: float) -> None:
        """Wait until something comes into an empty queue, or :meth:`wake`; at most ``timeout`` seconds."""

    def wake(self) -> None:
        """End a wait, from any thread; without one, the next ends at once."""

    def close(self) -> None:
        """Give the queues back. Must not be called while another thread calls :meth:`wake`."""


class Consumer(Protocol):
    """Reads ranges of partitions. Not thread-safe; it never joins a group."""

    throttling: Throttling
    """What the brokers have said of quotas; updated in :meth:`fetched`."""

    @property
    def closed(self) -> bool:
        """Whether the client is gone: nothing may be called but :meth:`close`."""

    def rebootstrap(self) -> None:
        """Call this while nothing comes, as often as needed: the client may know no broker any more."""

    def assign(
        self, positions: Sequence[TopicPartition], *, ends: Sequence[int] = (), columns: frozenset[str] | None = None
    ) -> None:
        """Read exactly these partitions, from these offsets. ``ends``: where each range ends; nothing behind is wanted.
        ``columns``: those of COLUMNS that are wanted of records, besides the offset; None = all. Raises
        KafkaException."""

    def incremental_unassign(self, partitions: Sequence[TopicPartition]) -> None:
        """Stop reading these partitions. Raises KafkaException."""

    def unassign(self) -> None:
        """Stop reading all partitions. Raises KafkaException."""

    def queues(self, places: Iterable[tuple[str, int]]) -> Queues:
        """Return a queue for each topic and partition. Called before :meth:`assign`."""

    def fetched(self, most: int, timeout: float) -> AbstractContextManager[Fetched]:
        """Yield at most ``most`` records, and events, of those that arrive within ``timeout`` seconds. They live until
        the block ends. Serves the log. Raises KafkaException."""

    def get_watermark_offsets(self, partition: TopicPartition, timeout: float) -> tuple[int, int]:
        """Return the first offset of the partition's log and the end of what is committed, as reported by the leader.
        Raises KafkaException."""

    def known_end(self, topic: str, partition: int) -> int | None:
        """Return the end of the partition's log, as the last fetch reported it; None before the first."""

    def positions(self, places: Sequence[tuple[str, int]]) -> list[tuple[int, int | None]]:
        """Return the offset after everything that :meth:`fetched` has passed in these partitions, and the leader epoch
        before it. That includes what it does not yield: markers, and records of aborted transactions. The offset is
        negative where it has passed nothing yet, and the epoch None where it is unknown. Raises KafkaException."""

    def wake(self) -> None:
        """End a wait in :meth:`fetched`, from any thread; without one, the next ends at once."""

    def topic_error(self, topic: str, timeout: float) -> KafkaError | None:
        """Return the error that a broker reports for the topic. Raises KafkaException without an answer."""

    def close(self) -> None:
        """Close connections and end threads."""
