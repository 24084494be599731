"""Several tables of a REST catalogue, changed by one request: readers see all of it or nothing.

The request requires of the state of each table what a commit of that table alone requires, so a catalogue that commits
all or none refuses it if any of them has changed. That it does so is its promise, and no part of the proof: afterwards
each table is asked for its own.
"""

from collections.abc import Sequence

from onceward.sinks.lake.control.committing import Change

__all__ = ["write_together"]


def write_together(changes: Sequence[Change]) -> Sequence[str]:
    """Make the changes, and return the state of each table, for people. Raises as :meth:`LakeTable.commit` does."""
    of_tables: dict[str, list[Change]] = {}
    for one in changes:  # two sinks may have one table, which the first of them has looked at first
        of_tables.setdefault(one.table.id, []).append(one)
    changes[0].table.send([each[0].table.request(each) for each in of_tables.values()])
    return [one.table.shown(one.app, one.wanted.transaction) for one in changes]
