"""The log of one partition: records, control markers, producers' sequences, and what a reader gets."""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from onceward.connections.codes import ErrorCode
from tests.support.kafka_model.settings import Produce, Record

__all__ = ["Entry", "Fate", "PartitionLog", "Span"]

_REMEMBERED_BATCHES = 5


class Fate(Enum):
    """How a producer's transaction ended in one partition."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(kw_only=True, slots=True)
class Span:
    """The part of one transaction in one partition, from its first record to its marker."""

    producer_id: int
    epoch: int
    first: int
    fate: Fate = Fate.OPEN


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """The entry at one offset: a record, or the marker that ends a transaction (`record` is None)."""

    offset: int
    at: float
    producer_id: int
    epoch: int
    record: Record | None
    span: Span | None
    """The part of a transaction that the record belongs to, or that the marker ends."""
    sequence: int = -1
    """The sequence of a record."""
    commit: bool = False
    """Whether a marker commits."""


@dataclass(kw_only=True, slots=True)
class _Writer:
    """What a partition remembers of one producer id."""

    epoch: int
    last_sequence: int = -1
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=_REMEMBERED_BATCHES))
    """(first sequence, last sequence, first offset) of the newest batches at `epoch`."""


class PartitionLog:
    """The log of one partition. Everything acknowledged is replicated, so the high watermark is the end."""

    def __init__(self, leader: int) -> None:
        self.leader = leader
        self.start = 0
        """The first offset that is not deleted. Only leaders asked with raw requests honour it."""
        self.entries: list[Entry] = []
        self._writers: dict[int, _Writer] = {}
        self._open: dict[int, Span] = {}
        """Open spans by producer id, in the order of their first offsets."""
        self._verified: dict[int, tuple[int, int]] = {}
        """For producers without an open transaction here: newest epoch, and the lowest sequence they sent. Until that
        sequence is appended, higher ones are out of order."""

    @property
    def high_watermark(self) -> int:
        return len(self.entries)

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest open transaction, or the end."""
        for span in self._open.values():
            return span.first
        return len(self.entries)

    def in_transaction(self, producer_id: int, epoch: int) -> bool:
        """Whether the producer has an open transaction here, so that its coordinator is not asked again."""
        span = self._open.get(producer_id)
        return span is not None and span.epoch == epoch

    def producers(self) -> Iterator[tuple[int, int, int, int]]:
        """The producers that wrote here: producer id, newest epoch, last sequence, first offset of the open transaction
        or -1."""
        for producer_id, writer in self._writers.items():
            span = self._open.get(producer_id)
            yield producer_id, writer.epoch, writer.last_sequence, -1 if span is None else span.first

    def open_span(self, producer_id: int) -> Span | None:
        """The part of the producer's open transaction here. A later transaction that writes here joins it."""
        return self._open.get(producer_id)

    def verifies(self, producer_id: int, epoch: int, sequence: int) -> None:
        """Note that the producer's coordinator is about to be asked whether this partition is enlisted."""
        known = self._verified.get(producer_id)
        if known is None or epoch > known[0] or (epoch == known[0] and sequence < known[1]):
            self._verified[producer_id] = (epoch, sequence)

    def append(self, request: Produce, now: float) -> tuple[ErrorCode, int]:
        """Append a batch once; a repeated one gets the first answer. Returns (code, offset of the first record)."""
        base = len(self.entries)
        if request.producer_id < 0:
            self._write(request, None, now)
            return ErrorCode.NONE, base
        last = request.sequence + len(request.records) - 1
        writer = self._writers.get(request.producer_id)
        if writer is not None:
            if request.producer_epoch == writer.epoch:
                for first_seen, last_seen, offset in writer.batches:
                    if (first_seen, last_seen) == (request.sequence, last):
                        return ErrorCode.NONE, offset
                if writer.last_sequence >= 0 and request.sequence != writer.last_sequence + 1:
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
                if writer.last_sequence < 0 and request.sequence != 0:
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
            elif request.producer_epoch < writer.epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH, -1
            elif request.sequence != 0:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        verified = self._verified.get(request.producer_id)
        begins = not self.in_transaction(request.producer_id, request.producer_epoch)
        if begins and verified is not None and request.sequence > verified[1]:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        if writer is None and request.implicit and request.sequence != 0:
            return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1
        if writer is None or request.producer_epoch != writer.epoch:
            writer = self._writers[request.producer_id] = _Writer(epoch=request.producer_epoch)
        writer.last_sequence = last
        writer.batches.append((request.sequence, last, base))
        span: Span | None = None
        if request.transactional_id is not None:
            span = self._open.get(request.producer_id)
            self._verified.pop(request.producer_id, None)
            if span is None:
                span = self._open[request.producer_id] = Span(
                    producer_id=request.producer_id, epoch=request.producer_epoch, first=base
                )
            # What hangs for lack of a marker is joined by the producer's next transaction, and decided with it.
            span.epoch = request.producer_epoch
        self._write(request, span, now)
        return ErrorCode.NONE, base

    def mark(self, producer_id: int, epoch: int, *, commit: bool, now: float) -> None:
        """Write a control marker, which takes an offset. Older epochs are refused from then on."""
        writer = self._writers.get(producer_id)
        if writer is None or epoch > writer.epoch:
            self._writers[producer_id] = _Writer(epoch=epoch)
        self._verified.pop(producer_id, None)
        span = self._open.pop(producer_id, None)
        if span is not None:
            span.fate = Fate.COMMITTED if commit else Fate.ABORTED
        offset = len(self.entries)
        self.entries.append(
            Entry(offset=offset, at=now, producer_id=producer_id, epoch=epoch, record=None, span=span, commit=commit)
        )

    def read(self, start: int, *, committed: bool = True, limit: int | None = None) -> tuple[list[Entry], int]:
        """Records from `start` as a reader gets them, and the offset to continue from. `limit`: the maximum of offsets
        scanned."""
        end = self.last_stable_offset if committed else len(self.entries)
        if limit is not None:
            end = min(end, start + limit)
        return list(_visible(self.entries[start:end], committed=committed)), max(start, end)

    def _write(self, request: Produce, span: Span | None, now: float) -> None:
        offset = len(self.entries)
        for number, record in enumerate(request.records):
            self.entries.append(
                Entry(
                    offset=offset,
                    at=now,
                    producer_id=request.producer_id,
                    epoch=request.producer_epoch,
                    record=record,
                    span=span,
                    sequence=-1 if request.producer_id < 0 else request.sequence + number,
                )
            )
            offset += 1


def _visible(entries: Sequence[Entry], *, committed: bool) -> Iterator[Entry]:
    for entry in entries:
        if entry.record is None:
            continue
        if committed and entry.span is not None and entry.span.fate is not Fate.COMMITTED:
            continue
        yield entry
