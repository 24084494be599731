"""What a store can say no to.

StoreError              a write or a read failed; whether the last write happened is unknown   exit code 6
├── StoreUnusableError  it was not opened, nothing was changed                                 exit code 2
└── StoreDamagedError   a record is not what was written; it is named                          exit code 6
"""

from coordinator.errors import ExitCode, StoreError

__all__ = ["StoreDamagedError", "StoreError", "StoreUnusableError"]


class StoreUnusableError(StoreError):
    """The store cannot be opened: in use, of another schema, on a network filesystem. Nothing was changed."""

    exit_code = ExitCode.USAGE


class StoreDamagedError(StoreError):
    """A stored record is not what was written. Nothing is guessed about it."""
