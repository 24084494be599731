"""Errors between Onceward and the sink's database.

OncewardError
├── DatabaseError                  the database gave no usable answer; the state is unknown
├── CheckpointFailedError
│   └── StagingError               a row was not staged; the slot does not vote
└── HaltedError
    └── ContradictionError         the database contradicts what was decided; a person must look
"""

from onceward.common.errors import CheckpointFailedError, HaltedError, OncewardError

__all__ = ["ContradictionError", "DatabaseError", "StagingError"]


class DatabaseError(OncewardError):
    """The database gave no usable answer. The outcome of what was asked is unknown; retrying is safe."""


class StagingError(CheckpointFailedError):
    """PostgreSQL did not take every row. The slot does not vote, so none of its rows becomes visible."""


class ContradictionError(HaltedError):
    """The database contradicts a durable decision. Nothing is changed after that."""
