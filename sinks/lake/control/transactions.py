"""Numbers of a sink's commits: the proof in a table's state that a checkpoint is committed, or never will be.

A table keeps the last number of each application in its state (of Delta, an app transaction; of Iceberg, a property of
the table), where clean-up does not remove it. Libraries do not compare numbers; the process that commits looks at the
state that it commits on.

The application is the sink of a job. A number is a sequence and a token:

- The sequence is one above the last that the *table* has. It is not the checkpoint's id, because ids begin again when a
  job is deleted and another one takes its name.
- The token, random, distinguishes committables of the same sequence: one whose checkpoint was aborted, and the one that
  took its place, perhaps of another store. So what stands in the table is exactly one committable.

Of all committables, the one that can be committed has a higher sequence than the table. Once a later one is committed,
an older one can never be.

A second application holds the last committable that was fenced: a commit without files, which is made where the files
of a committable are gone. It takes no sequence, so the fence of an aborted committable does not stop the one that has
taken its place.
"""

import secrets
from enum import Enum, auto
from typing import Final

__all__ = ["Place", "next_number", "place_of"]

_STEP: Final = 2**20


class Place(Enum):
    """Where a committable stands, by the number that the table has."""

    OPEN = auto()
    """It can be committed."""
    COMMITTED = auto()
    PASSED = auto()
    """A later one was committed. It never can be; whether it was before is not known."""


def next_number(*taken: int | None) -> int:
    """Return the number of a new committable. ``taken``: those before it, in the table and of this process."""
    sequence = max(number // _STEP for number in (0, *filter(None, taken))) + 1
    return sequence * _STEP + secrets.randbelow(_STEP)


def place_of(number: int, found: int | None) -> Place:
    """``found``: the number in the table."""
    if found is None or found // _STEP < number // _STEP:
        return Place.OPEN
    return Place.COMMITTED if found == number else Place.PASSED
