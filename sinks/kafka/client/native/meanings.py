"""What each error code of Produce means for the slot. In doubt the slot fails: its records are written again."""

from enum import Enum
from typing import Final

__all__ = ["Meaning", "meaning_of"]


class Meaning(Enum):
    WRITTEN = "written"
    """The leader has the batch."""
    MOVED = "moved"
    """Another broker leads, or soon will: ask for metadata, then send the same batch there."""
    AGAIN = "again"
    """The leader cannot take it now, or has it and does not know whether its followers do: send the same batch again
    after a pause. It is written once, because it has the same sequence."""
    BEHIND = "behind"
    """An earlier batch of the partition is missing. If that one is sent again, so is this; else the slot fails."""
    FENCED = "fenced"
    """Another producer has the transactional id, or the coordinator has ended the transaction: the slot fails."""
    FAIL = "fail"
    """Sending it again does not help, or it is unknown whether it does: the slot fails."""


_MEANINGS: Final = {
    0: Meaning.WRITTEN,
    3: Meaning.MOVED,  # UNKNOWN_TOPIC_OR_PARTITION: the leader does not know it yet, or any more
    5: Meaning.MOVED,  # LEADER_NOT_AVAILABLE
    6: Meaning.MOVED,  # NOT_LEADER_OR_FOLLOWER
    7: Meaning.AGAIN,  # REQUEST_TIMED_OUT: the followers are late
    8: Meaning.MOVED,  # BROKER_NOT_AVAILABLE
    9: Meaning.MOVED,  # REPLICA_NOT_AVAILABLE
    13: Meaning.MOVED,  # NETWORK_EXCEPTION
    19: Meaning.AGAIN,  # NOT_ENOUGH_REPLICAS
    20: Meaning.AGAIN,  # NOT_ENOUGH_REPLICAS_AFTER_APPEND
    45: Meaning.BEHIND,  # OUT_OF_ORDER_SEQUENCE_NUMBER
    46: Meaning.WRITTEN,  # DUPLICATE_SEQUENCE_NUMBER
    47: Meaning.FENCED,  # INVALID_PRODUCER_EPOCH
    51: Meaning.AGAIN,  # CONCURRENT_TRANSACTIONS: the coordinator is busy with the transaction
    56: Meaning.MOVED,  # KAFKA_STORAGE_ERROR: a disk failed, so another broker will lead
    72: Meaning.MOVED,  # LISTENER_NOT_FOUND
    90: Meaning.FENCED,  # PRODUCER_FENCED
}
"""All others fail, among them -1 (UNKNOWN_SERVER_ERROR), 2 (CORRUPT_MESSAGE), 10 (MESSAGE_TOO_LARGE), 29
(TOPIC_AUTHORIZATION_FAILED), 32 (INVALID_TIMESTAMP), 48 (INVALID_TXN_STATE), 49 (INVALID_PRODUCER_ID_MAPPING), 59
(UNKNOWN_PRODUCER_ID: the leader has lost what it knew of the sequences), 87 (INVALID_RECORD) and 120
(TRANSACTION_ABORTABLE)."""


def meaning_of(code: int) -> Meaning:
    return _MEANINGS.get(code, Meaning.FAIL)
