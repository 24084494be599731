"""What a store can say no to.

StoreError              a write or a read failed; whether the last write happened is unknown   exit code 6
├── StoreUnusableError  it was not opened, nothing was changed                                 exit code 2
└── StoreDamagedError   a record is not what was written; it is named                          exit code 6

NoSuchCheckpointError   what was asked for is not there, or not readable; the store is as it was
"""

from coordinator.errors import ExitCode, StoreError

__all__ = ["NoSuchCheckpointError", "StoreDamagedError", "StoreError", "StoreUnusableError"]


class StoreUnusableError(StoreError):
    """The store cannot be opened: in use, of another schema, on a network filesystem. Nothing was changed."""

    exit_code = ExitCode.USAGE


class StoreDamagedError(StoreError):
    """A stored record is not what was written. Nothing is guessed about it."""


class NoSuchCheckpointError(LookupError):
    """There is no completed checkpoint of that id that can be read. The store is unharmed."""
