"""Which store a database holds: its id, and the version of its schema. Creates both in an empty database."""

import uuid

from sqlalchemy import Connection, Table, insert, inspect, select

from onceward.common.printable import log_fields, logger
from onceward.coordinator.store import migrations
from onceward.coordinator.store.database import Database
from onceward.coordinator.store.errors import PUT_BACK, StoreDamagedError, StoreUnusableError
from onceward.coordinator.store.schema import SCHEMA_VERSION, checksum, meta, metadata, unsealed

__all__ = ["identify"]

_log = logger("onceward.store")


def identify(database: Database) -> str:
    """The store's id, after checking its schema. Raises StoreUnusableError, StoreDamagedError."""
    connection = database.connection
    with connection.begin():
        tables = set(inspect(connection).get_table_names())
        if tables:
            return _known_id(database, tables)
        store_id = _create(connection)
    database.secure_creation()
    return store_id


def _create(connection: Connection) -> str:
    metadata.create_all(connection)
    store_id = str(uuid.uuid4())
    for key, value in (("schema_version", str(SCHEMA_VERSION)), ("store_id", store_id)):
        row = {"key": key, "value": value}
        connection.execute(insert(meta), {**row, "checksum": checksum(meta, row)})
    return store_id


def _known_id(database: Database, tables: set[str]) -> str:
    if meta.name not in tables:
        raise StoreUnusableError(
            f"{database.name} is a database of something else (tables {', '.join(sorted(tables)[:5])}). Nothing was "
            f"changed. Give the store {database.own_place}."
        )
    database.check_rights(tables & {_name(table) for table in metadata.sorted_tables})
    rows = list(database.connection.execute(select(meta)).mappings())
    for row in rows:
        if unsealed(meta, row):
            raise StoreDamagedError(
                f"The store's own record {row['key']} is not what was written: its checksum differs. Nothing was "
                f"changed or guessed. {PUT_BACK}"
            )
    values = {row["key"]: row["value"] for row in rows}
    _bring_up_to_date(database, values.get("schema_version", "none"))
    missing = {_name(table) for table in metadata.sorted_tables} - set(inspect(database.connection).get_table_names())
    if missing or "store_id" not in values:
        raise StoreDamagedError(
            f"The store {database.name} lacks {', '.join(sorted(missing)) or 'its identifier'}. Nothing was changed. "
            f"{PUT_BACK}"
        )
    return str(values["store_id"])


def _bring_up_to_date(database: Database, version: str) -> None:
    """Migrate an older store, in the caller's transaction. Raises StoreUnusableError if there is no way."""
    steps = migrations.steps_from(int(version)) if version.isdecimal() else None
    if steps is None:
        raise StoreUnusableError(
            f"The store {database.name} has schema version {version}, this program knows version {SCHEMA_VERSION}. "
            "Nothing was changed. Use the version of onceward that wrote the store, or a newer one."
        )
    if steps:
        database.require_alone(inspect(database.connection).get_table_names())
        with database.translated(f"migrating it from schema version {version} to {SCHEMA_VERSION}"):
            migrations.migrate(database.connection, steps)
        detail = "older versions of onceward cannot open it any more"
        said = {"event": "store_migrated", "from": version, "to": SCHEMA_VERSION, "detail": detail}
        _log.warning("%s", log_fields(said))


def _name(table: Table) -> str:
    return str(table.name)
