"""The errors of a store.

StoreError              a read or write failed; the result of the last write is unknown   exit code 6
├── StoreUnusableError  the store was not opened; nothing was changed                     exit code 2
├── StoreDamagedError   a record differs from what was written; the message names it      exit code 6
├── LeadLostError       another coordinator leads on the store; nothing was written       exit code 6
└── ListingFailedError  a listing was not read; the store continues                       exit code 6

NoSuchCheckpointError   the checkpoint is missing or not readable; the store is unharmed
"""

from onceward.common.errors import ExitCode, StoreError

__all__ = [
    "PUT_BACK",
    "LeadLostError",
    "ListingFailedError",
    "NoSuchCheckpointError",
    "StoreDamagedError",
    "StoreError",
    "StoreUnusableError",
]


PUT_BACK = (
    "Stop the coordinator and put back a copy that was made after the newest checkpoint of every job. An older copy is "
    "refused, because going on from it would write records twice. Without a new enough copy see what the output holds, "
    "and start new jobs behind the input of it (KafkaSource(start=...))"
)


class StoreUnusableError(StoreError):
    """The store cannot be opened: in use, of another schema, on a network filesystem. Nothing was changed."""

    exit_code = ExitCode.USAGE


class StoreDamagedError(StoreError):
    """A stored record differs from what was written. Nothing is guessed."""


class LeadLostError(StoreError):
    """Another coordinator's term has begun. The transaction that found out wrote nothing."""


class ListingFailedError(StoreError):
    """A listing could not be read through the connection for listings. The store continues, and so do its writes."""


class NoSuchCheckpointError(LookupError):
    """No readable completed checkpoint has that id. The store is unharmed."""
