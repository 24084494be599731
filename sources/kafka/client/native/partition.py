"""One partition while it is read."""

import time
import uuid
from collections import deque
from typing import Any, Final

from confluent_kafka import KafkaError

from onceward.common.backoff import Backoff
from onceward.sources.kafka.client.choice import leave_to_librdkafka
from onceward.sources.kafka.client.interface import Event
from onceward.sources.kafka.client.native.pieces import Piece
from onceward.sources.kafka.client.native.records import NativeRecords
from onceward_native import (
    CodecError,
    Decoder,
    HeaderNameNotUtf8Error,
    OldFormatError,
    TooLargeError,
    UnsupportedCompressionError,
)

__all__ = ["Decoders", "ReadPartition"]

_CHUNK_BYTES: Final = 1 << 20
"""Of one decoded batch: what the processor's cache holds."""
_NO_END: Final = 2**63 - 1
_PAUSES_S: Final = (0.02, 1.0)
_READ_BY_LIBRDKAFKA: Final = (HeaderNameNotUtf8Error, OldFormatError, TooLargeError, UnsupportedCompressionError)


class Decoders:
    """Decoders that are kept for the next piece."""

    def __init__(self, columns: list[str], *, check: bool) -> None:
        self._columns, self._check = columns, check
        self._idle: list[Decoder] = []

    def take(self) -> Decoder:
        columns: Any = self._columns
        return self._idle.pop() if self._idle else Decoder(columns, check_crc=self._check)

    def give_back(self, decoder: Decoder) -> None:
        decoder.open(b"", start=0, end=0)  # lets go of the answer
        self._idle.append(decoder)


class ReadPartition:
    """One partition: where it is read, and what has come of it."""

    def __init__(self, topic: str, number: int, start: int, end: int | None) -> None:
        self.topic, self.number = topic, number
        self.end = _NO_END if end is None else end
        self.next = start
        """Where the next fetch begins."""
        self.epoch = -1
        """Of the batch before it; -1: unknown."""
        self.known_end: int | None = None
        self.passed: tuple[int, int | None] | None = None
        """The offset after everything that was taken, and the leader epoch before it."""
        self.asked = False
        """A fetch is on its way."""
        self.stopped = False
        """It met an error that the caller has to act on."""
        self.heard = time.monotonic()
        """When it was fetched last without an error, or the reading began (monotonic)."""
        self.again = 0.0
        """When it may be fetched (monotonic)."""
        self.pauses = Backoff(first=_PAUSES_S[0], longest=_PAUSES_S[1])
        self.unknown_since: float | None = None
        """Since when brokers do not know it (monotonic)."""
        self.topic_id: uuid.UUID | None = None
        self._pieces: deque[Piece] = deque()
        self._decoder: Decoder | None = None
        """Of the first piece, once it was begun."""
        self._rest: NativeRecords | None = None
        """Decoded, and not taken."""
        self._ended_at: int | None = None
        """The end that was reported last."""

    @property
    def place(self) -> tuple[str, int]:
        return self.topic, self.number

    @property
    def waiting(self) -> bool:
        """Whether something has come and was not taken."""
        return self._rest is not None or bool(self._pieces)

    @property
    def done(self) -> bool:
        """Whether nothing more is to be fetched."""
        return self.stopped or self.next >= self.end

    def wants(self, now: float, *, ahead: bool) -> bool:
        """Return whether to fetch it. ``ahead``: also while one piece waits."""
        if self.done or self.asked or now < self.again:
            return False
        return len(self._pieces) <= 1 if ahead else not self.waiting

    def came(self, piece: Piece) -> bool:
        """Take in what an answer has of the partition. Return whether something is to be taken of it."""
        self.known_end = piece.stable
        if piece.next > self.next:
            self.next, self.epoch = piece.next, piece.epochs.of(piece.next - 1)
        elif not len(piece.records) and (self._pieces or not self._is_end(piece)):
            return False
        self._pieces.append(piece)  # also without a whole batch: what is wrong with it is found when it is decoded
        return True

    def take(self, most: int, decoders: Decoders) -> tuple[list[NativeRecords], list[Event]]:
        """Return at most ``most`` records that have come, and what follows them."""
        taken: list[NativeRecords] = []
        while most > 0:
            if self._rest is None:
                if not self._pieces:
                    break
                try:
                    if not self._decode(decoders):
                        piece = self._finish(decoders)
                        if not self._pieces and self._is_end(piece):
                            self._ended_at = piece.next
                            return taken, [
                                Event(self.topic, self.number, piece.next, KafkaError(KafkaError._PARTITION_EOF))
                            ]
                        continue
                except CodecError as error:
                    self.stopped = True
                    self.clear(decoders)
                    return taken, [self.failed(KafkaError._BAD_MSG, _explained(error))]
            assert self._rest is not None
            part, count = self._rest, len(self._rest)
            if count > most:
                part, self._rest = part.rows(0, most), part.rows(most, count - most)
            else:
                self._rest = None
            last = int(part.offsets[-1])
            self.passed = last + 1, _known(part.last_epoch())
            most -= len(part)
            taken.append(part)
        return taken, []

    def failed(self, code: int, why: str) -> Event:
        return Event(self.topic, self.number, self.next, KafkaError(code, f"{self.topic}-{self.number}: {why}"))

    def clear(self, decoders: Decoders) -> None:
        """Drop what has come."""
        if self._decoder is not None:
            decoders.give_back(self._decoder)
            self._decoder = None
        for piece in self._pieces:
            piece.release()
        self._pieces.clear()
        self._rest = None

    def _decode(self, decoders: Decoders) -> bool:
        """Decode some records of the first piece; False if there are no more."""
        piece = self._pieces[0]
        if self._decoder is None:
            self._decoder = decoders.take()
            self._decoder.open(piece.records, start=piece.start, end=_NO_END, aborted=piece.aborted)
        used = self._decoder.bytes_used
        chunk = self._decoder.read(_CHUNK_BYTES)
        if chunk is None:
            return False
        size = (self._decoder.bytes_used - used) // chunk.records.num_rows
        self._rest = NativeRecords(self.topic, self.number, chunk.records, piece.epochs, size)
        return True

    def _finish(self, decoders: Decoders) -> Piece:
        """Pass the first piece, whose records were all taken."""
        piece, decoder = self._pieces.popleft(), self._decoder
        assert decoder is not None
        reached = decoder.next_offset
        decoders.give_back(decoder)
        self._decoder = None
        piece.release()
        if reached != max(piece.next, piece.start):
            raise RuntimeError(
                f"Decoding {self.topic}-{self.number} from offset {piece.start} ended at offset {reached}, and the "
                f"batches end at {piece.next}. That is a bug of ours; no record behind it was taken. Please report it."
            )
        if piece.next > piece.start:
            self.passed = piece.next, _known(piece.epochs.of(piece.next - 1))
        return piece

    def _is_end(self, piece: Piece) -> bool:
        return piece.next != self._ended_at and (piece.next >= piece.stable or piece.next >= self.end)


def _explained(error: CodecError) -> str:
    if not isinstance(error, _READ_BY_LIBRDKAFKA):
        return str(error)
    leave_to_librdkafka(f"the native reader met what it cannot read: {error}")
    return f"{error} The next attempt in this process reads by librdkafka, which can."


def _known(epoch: int) -> int | None:
    return epoch if epoch >= 0 else None
