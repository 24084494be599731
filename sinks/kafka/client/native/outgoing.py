"""The batches of one partition, from the encoder until the leader confirms them. Pure.

Batches are sent in order of their sequences, up to five at a time. What is lost, or cannot be taken now, is sent again
with the same sequence: then all that follow it wait until each answer has come, and are sent again in order. A leader
recognizes a batch that it has among the last five of the producer, so none is sent that comes more than four after one
that is not confirmed.
"""

from collections import deque
from typing import Final

from onceward.common.backoff import Backoff
from onceward.sinks.kafka.client.native.meanings import Meaning
from onceward_native import Batch

__all__ = ["Outgoing"]

_MOST: Final = 5
"""Batches from the first that is not confirmed on (ProducerStateEntry.NUM_BATCHES_TO_RETAIN of brokers)."""
_PAUSE_S: Final = (0.005, 1.0)


class Outgoing:
    """One partition."""

    def __init__(self, topic: str, number: int) -> None:
        self.topic, self.number = topic, number
        self.added = False
        """Whether the partition belongs to the transaction."""
        self.node = -1
        """The broker that has the batches on their way."""
        self.again = 0.0
        """When to send the next batch (monotonic)."""
        self._batches: deque[tuple[int, Batch]] = deque()
        """Those that are not confirmed, with their numbers."""
        self._added = 0
        self._flying = 0
        self._unsent = 0
        """Batches from the end that were never sent, or have to be sent again."""
        self._rewinds = False
        """Something is sent again: nothing is sent until each answer has come."""
        self._proven = False
        """The leader has confirmed a batch. Until then one is sent alone: a leader that knows no batch of a producer
        takes one with any sequence."""
        self._pauses = Backoff(first=_PAUSE_S[0], longest=_PAUSE_S[1])

    @property
    def place(self) -> tuple[str, int]:
        return self.topic, self.number

    @property
    def flying(self) -> bool:
        """Whether an answer is awaited."""
        return self._flying > 0

    def add(self, batch: Batch) -> None:
        self._batches.append((self._added, batch))
        self._added += 1
        self._unsent += 1

    def wants(self, now: float) -> bool:
        """Return whether a batch may be sent now."""
        if not self._unsent or not self.added or self._rewinds or now < self.again:
            return False
        (first, _), (next_, _) = self._batches[0], self._batches[-self._unsent]
        return next_ - first < (_MOST if self._proven else 1)

    def next(self) -> Batch:
        """Return the batch that comes next."""
        return self._batches[-self._unsent][1]

    def sent(self, node: int) -> None:
        """Note that the next batch is on its way."""
        self._unsent -= 1
        self._flying += 1
        self.node = node

    def unsent(self) -> None:
        """Note that the batch which was just noted as sent is not: there was no connection."""
        self._unsent += 1
        self._flying -= 1

    def answered(self, batch: Batch, meaning: Meaning, now: float) -> int | None:
        """Act on an answer, or on ``Meaning.MOVED`` for a lost one. Return how many records it confirms; None: the slot
        fails."""
        self._flying -= 1
        confirmed: int | None = 0
        match meaning:
            case Meaning.WRITTEN:
                self._batches = deque(each for each in self._batches if each[1] is not batch)
                self._proven = True
                self._pauses.reset()
                confirmed = batch.records
            case Meaning.MOVED | Meaning.AGAIN:
                self._rewinds = True
                self.again = now + self._pauses.next()
            case Meaning.BEHIND if self._rewinds and self._batches[0][1] is not batch:
                pass
            case _:
                confirmed = None
        if self._rewinds and not self._flying:
            self._rewinds, self._unsent = False, len(self._batches)
        return confirmed
