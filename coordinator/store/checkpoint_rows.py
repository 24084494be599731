"""The checkpoints that one write changes: changed in memory, written together.

A statement costs more than a row, above all on a database behind a network.
"""

from collections.abc import Mapping
from typing import Any, TypeAlias

from sqlalchemy import Connection, bindparam, insert, select, update

from onceward.coordinator.store.schema import checkpoints, checksum, replacing, unsealed
from onceward.coordinator.store.statements import Statement
from onceward.protocol.values import CheckpointId, CheckpointState, JobName

__all__ = ["CheckpointRows", "Key", "Unfinished"]

Key: TypeAlias = tuple[JobName, CheckpointId]

Unfinished: TypeAlias = dict[Key, dict[str, Any]]
"""Rows that this process wrote and will change: of checkpoints that are undecided or not settled. Without snapshots."""

_OPEN = (CheckpointState.TRIGGERED.value, CheckpointState.COMPLETED.value)
_THIS = (checkpoints.c.job == bindparam("j")) & (checkpoints.c.checkpoint == bindparam("n"))
# Snapshots can be large, and have their own checksum.
_SELECT = Statement(select(*(column for column in checkpoints.columns if column.name != "snapshots")).where(_THIS))
_INSERT = Statement(insert(checkpoints))
_REPLACE = Statement(replacing(checkpoints))
_UPDATE = Statement(update(checkpoints).where(_THIS))
_DELETE = Statement(checkpoints.delete().where(_THIS))


class CheckpointRows:
    """Changes that are not written yet, on top of what the database holds."""

    def __init__(self, connection: Connection, unfinished: Unfinished) -> None:
        """:param unfinished: is kept up to date; the database is asked only for rows that are not there."""
        self._connection = connection
        self._rows = unfinished
        self._clear()

    def _clear(self) -> None:
        self._new: set[Key] = set()
        self._replaced: set[Key] = set()
        self._changed: set[Key] = set()
        self._deleted: list[Key] = []

    def insert(self, row: Mapping[str, Any]) -> None:
        """Add a row whose key the database does not hold."""
        self._new.add(self._put(row))

    def replace(self, row: Mapping[str, Any]) -> None:
        """Write a row, whether the database holds its key or not."""
        self._replaced.add(self._put(row))

    def change(self, key: Key, changes: Mapping[str, Any]) -> bool:
        """Change columns of a row. Returns False, and changes nothing, if the row is missing or damaged."""
        row = self._rows.get(key) or self._read(key)
        if row is None:
            return False
        row.update(changes)
        row["checksum"] = checksum(checkpoints, row)
        self._changed.add(key)
        return True

    def delete(self, key: Key) -> None:
        self._rows.pop(key, None)
        self._changed.discard(key)
        if key in self._new:
            self._new.discard(key)
        else:
            self._deleted.append(key)

    def forget(self, job: JobName) -> None:
        """Drop what is known of a job: the database is about to delete its rows."""
        self.flush()
        for key in [key for key in self._rows if key[0] == job]:
            del self._rows[key]

    def flush(self) -> None:
        """Write the changes, each kind together."""
        connection, whole = self._connection, self._new | self._replaced
        _DELETE.run(connection, [{"j": job, "n": number} for job, number in self._deleted])
        _INSERT.run(connection, [self._rows[key] for key in sorted(self._new)])
        _REPLACE.run(connection, [self._rows[key] for key in sorted(self._replaced)])
        # All that is known of a row, so that damage since its last write is repaired.
        # Rows with the same columns, which have snapshots or not, share a statement.
        alike: dict[frozenset[str], list[dict[str, Any]]] = {}
        for job, number in sorted(self._changed - whole):
            row = self._rows[job, number]
            alike.setdefault(frozenset(row), []).append({"j": job, "n": number, **row})
        for rows in alike.values():
            _UPDATE.run(connection, rows)
        for key in whole | self._changed:
            row = self._rows[key]
            if row["state"] in _OPEN:
                row.pop("snapshots", None)
            else:
                del self._rows[key]
        self._clear()

    def _put(self, row: Mapping[str, Any]) -> Key:
        key = row["job"], row["checkpoint"]
        self._rows[key] = {**row, "checksum": checksum(checkpoints, row)}
        return key

    def _read(self, key: Key) -> dict[str, Any] | None:
        """The row, if it is there and undamaged."""
        for row in _SELECT.rows(self._connection, {"j": key[0], "n": key[1]}):
            if not unsealed(checkpoints, row):
                return self._rows.setdefault(key, row)
        return None
