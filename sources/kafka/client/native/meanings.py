"""What each error code of a broker means for a reader."""

from enum import Enum
from typing import Final

__all__ = ["Meaning", "meaning_of"]


class Meaning(Enum):
    REFRESH = "refresh"
    """Another broker leads, or soon will: ask for metadata, then again."""
    RETRY = "retry"
    """The broker cannot answer now: ask again after a pause."""
    UNKNOWN = "unknown"
    """The broker does not know the topic or partition. It may be new: as REFRESH, and an error after a while."""
    GONE = "gone"
    """The offset is not in the log."""
    FAIL = "fail"
    """Asking again does not help, or it is unknown whether it does: the read fails. No record is skipped."""


_MEANINGS: Final = {
    1: Meaning.GONE,  # OFFSET_OUT_OF_RANGE
    3: Meaning.UNKNOWN,  # UNKNOWN_TOPIC_OR_PARTITION
    5: Meaning.REFRESH,  # LEADER_NOT_AVAILABLE
    6: Meaning.REFRESH,  # NOT_LEADER_OR_FOLLOWER
    7: Meaning.RETRY,  # REQUEST_TIMED_OUT
    8: Meaning.REFRESH,  # BROKER_NOT_AVAILABLE
    9: Meaning.REFRESH,  # REPLICA_NOT_AVAILABLE
    13: Meaning.REFRESH,  # NETWORK_EXCEPTION
    56: Meaning.REFRESH,  # KAFKA_STORAGE_ERROR: a disk failed, so another broker will lead
    72: Meaning.REFRESH,  # LISTENER_NOT_FOUND: the leader has no such listener, as while it starts
    74: Meaning.REFRESH,  # FENCED_LEADER_EPOCH: our metadata is older than the leader
    75: Meaning.REFRESH,  # UNKNOWN_LEADER_EPOCH: our metadata is newer than the broker
    78: Meaning.RETRY,  # OFFSET_NOT_AVAILABLE: a new leader does not know yet what is committed
    100: Meaning.REFRESH,  # UNKNOWN_TOPIC_ID: not known yet, or recreated; the consumer compares the ids
    103: Meaning.REFRESH,  # INCONSISTENT_TOPIC_ID: likewise
}
"""All others fail, among them -1 (UNKNOWN_SERVER_ERROR), 2 (CORRUPT_MESSAGE), 29 (TOPIC_AUTHORIZATION_FAILED), 35
(UNSUPPORTED_VERSION), 76 (UNSUPPORTED_COMPRESSION_TYPE) and 109 (OFFSET_MOVED_TO_TIERED_STORAGE, for followers)."""


def meaning_of(code: int) -> Meaning:
    """``code``: not 0."""
    return _MEANINGS.get(code, Meaning.FAIL)
