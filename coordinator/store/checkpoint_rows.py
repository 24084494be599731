"""The checkpoints that one write changes: read together, changed in memory, written together.

A statement costs more than a row, above all on a database behind a network.
"""

from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

from sqlalchemy import Connection, bindparam, insert, select, tuple_, update

from onceward.coordinator.protocol.values import CheckpointId, JobName
from onceward.coordinator.store.schema import checkpoints, checksum, replacing, unsealed

__all__ = ["CheckpointRows", "Key"]

Key: TypeAlias = tuple[JobName, CheckpointId]

_KEY = tuple_(checkpoints.c.job, checkpoints.c.checkpoint)
_THIS = (checkpoints.c.job == bindparam("j")) & (checkpoints.c.checkpoint == bindparam("n"))
# Snapshots can be large, and have their own checksum.
_SELECT = select(*(column for column in checkpoints.columns if column.name != "snapshots")).where(
    _KEY.in_(bindparam("keys", expanding=True))
)
_INSERT = insert(checkpoints)
_REPLACE = replacing(checkpoints)
_UPDATE = update(checkpoints).where(_THIS)
_DELETE = checkpoints.delete().where(_THIS)


class CheckpointRows:
    """Changes that are not written yet, on top of what the database holds."""

    def __init__(self, connection: Connection, keys: Collection[Key]) -> None:
        """Read the rows of ``keys``, as far as they are there and undamaged."""
        self._connection = connection
        found = connection.execute(_SELECT, {"keys": sorted(keys)}).mappings() if keys else ()
        self._rows = {(row["job"], row["checkpoint"]): dict(row) for row in found if not unsealed(checkpoints, row)}
        self._clear()

    def _clear(self) -> None:
        self._new: set[Key] = set()
        self._replaced: set[Key] = set()
        self._changes: dict[Key, dict[str, Any]] = {}
        self._deleted: list[Key] = []

    def insert(self, row: Mapping[str, Any]) -> None:
        """Add a row whose key the database does not hold."""
        self._new.add(self._put(row))

    def replace(self, row: Mapping[str, Any]) -> None:
        """Write a row, whether the database holds its key or not."""
        self._replaced.add(self._put(row))

    def change(self, key: Key, changes: Mapping[str, Any]) -> bool:
        """Change columns of a row. Returns False, and changes nothing, if the row is missing or damaged."""
        row = self._rows.get(key)
        if row is None:
            return False
        row.update(changes)
        row["checksum"] = checksum(checkpoints, row)
        self._changes.setdefault(key, {}).update(changes)
        return True

    def delete(self, key: Key) -> None:
        self._rows.pop(key, None)
        self._changes.pop(key, None)
        if key in self._new:
            self._new.discard(key)
        else:
            self._deleted.append(key)

    def flush(self) -> None:
        """Write the changes, each kind together."""
        whole = self._new | self._replaced
        self._write(_DELETE, [{"j": job, "n": number} for job, number in self._deleted])
        self._write(_INSERT, [self._rows[key] for key in sorted(self._new)])
        self._write(_REPLACE, [self._rows[key] for key in sorted(self._replaced)])
        # Rows with the same columns share a statement.
        alike: dict[frozenset[str], list[dict[str, Any]]] = {}
        for (job, number), changes in self._changes.items():
            if (job, number) not in whole:
                values = {**changes, "checksum": self._rows[job, number]["checksum"]}
                alike.setdefault(frozenset(values), []).append({"j": job, "n": number, **values})
        for rows in alike.values():
            self._write(_UPDATE, rows)
        self._clear()

    def _put(self, row: Mapping[str, Any]) -> Key:
        key = row["job"], row["checkpoint"]
        self._rows[key] = {**row, "checksum": checksum(checkpoints, row)}
        return key

    def _write(self, statement: Any, rows: list[dict[str, Any]]) -> None:
        if rows:
            self._connection.execute(statement, rows)
