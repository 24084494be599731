"""From an older store's schema to this program's, one version at a time."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from sqlalchemy import Connection, update

from onceward.coordinator.store.schema import SCHEMA_VERSION, checksum, meta

__all__ = ["MIGRATIONS", "migrate", "steps_from"]

Migration: TypeAlias = Callable[[Connection], None]
"""Brings a store to the next version, inside the caller's transaction. Works on the tables as they were: it must not
use those of the present schema."""


def _keep_phases(connection: Connection) -> None:
    connection.exec_driver_sql("ALTER TABLE checkpoints ADD COLUMN phases TEXT")


def _keep_bodies_as_text(connection: Connection) -> None:
    """Nothing: snapshots of both forms are read. An older program reads only the older form."""


MIGRATIONS: Mapping[int, Migration] = MappingProxyType({6: _keep_phases, 7: _keep_bodies_as_text})
"""By the version that each one begins with. Version 6 is the oldest that a store may have."""


def steps_from(version: int) -> list[Migration] | None:
    """The migrations from ``version`` to this program's, in order; None if there is no way."""
    if not version <= SCHEMA_VERSION:
        return None
    steps = [MIGRATIONS.get(number) for number in range(version, SCHEMA_VERSION)]
    return [step for step in steps if step is not None] if all(steps) else None


def migrate(connection: Connection, steps: list[Migration]) -> None:
    """Take the steps, inside the caller's transaction: all or none."""
    for step in steps:
        step(connection)
    row = {"key": "schema_version", "value": str(SCHEMA_VERSION)}
    connection.execute(update(meta).where(meta.c.key == row["key"]).values(**row, checksum=checksum(meta, row)))
