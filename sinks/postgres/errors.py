"""Errors between Onceward and the sink's database.

OncewardError
├── DatabaseError                  the database gave no usable answer; the state is unknown
├── CheckpointFailedError
│   └── StagingError               a row was not staged; the slot does not vote
│       └── UnfitTextError         PostgreSQL has no form for a text
└── HaltedError
    └── ContradictionError         the database contradicts what was decided; a person must look
"""

from collections.abc import Sequence

from onceward.common.errors import CheckpointFailedError, HaltedError, OncewardError

__all__ = ["ContradictionError", "DatabaseError", "StagingError", "UnfitTextError"]


class DatabaseError(OncewardError):
    """The database gave no usable answer. The outcome of what was asked is unknown; retrying is safe."""


class StagingError(CheckpointFailedError):
    """PostgreSQL did not take every row. The slot does not vote, so none of its rows becomes visible."""


class UnfitTextError(StagingError):
    """PostgreSQL has no form for the text of some rows."""

    def __init__(self, rows: Sequence[int], text: str) -> None:
        super().__init__(text)
        self.rows = rows
        """In their batch."""


class ContradictionError(HaltedError):
    """The database contradicts a durable decision. Nothing is changed after that."""
