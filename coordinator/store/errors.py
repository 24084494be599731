"""What a store can say no to.

StoreError              a write or a read failed; whether the last write happened is unknown   exit code 6
├── StoreUnusableError  it was not opened, nothing was changed                                 exit code 2
└── StoreDamagedError   a record is not what was written; it is named                          exit code 6

NoSuchCheckpointError   what was asked for is not there, or not readable; the store is as it was
"""

from onceward.coordinator.errors import ExitCode, StoreError

__all__ = ["PUT_BACK", "NoSuchCheckpointError", "StoreDamagedError", "StoreError", "StoreUnusableError"]


PUT_BACK = (
    "Stop the coordinator and put back a copy that was made after the newest checkpoint of every job. An older copy is "
    "refused, because going on from it would write records twice. Without a new enough copy see what the output holds, "
    "and start new jobs behind the input of it (KafkaSource(start=...))"
)


class StoreUnusableError(StoreError):
    """The store cannot be opened: in use, of another schema, on a network filesystem. Nothing was changed."""

    exit_code = ExitCode.USAGE


class StoreDamagedError(StoreError):
    """A stored record is not what was written. Nothing is guessed about it."""


class NoSuchCheckpointError(LookupError):
    """There is no completed checkpoint of that id that can be read. The store is unharmed."""
