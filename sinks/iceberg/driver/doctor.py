"""What ``onceward doctor`` asks an Iceberg table: the preflight of a sink, without a job that starts."""

from collections.abc import Sequence

from onceward.connectors.interfaces import Examined
from onceward.sinks.iceberg.catalog import CatalogTable
from onceward.sinks.iceberg.control.table import LoadedTable
from onceward.sinks.iceberg.driver import preflight
from onceward.sinks.iceberg.executor.writer import libraries_at
from onceward.sinks.lake.driver.preflight import NO_JOB
from onceward.sinks.lake.location import refuse_names

__all__ = ["examine"]


def examine(location: CatalogTable, names: Sequence[str], job: str | None) -> Examined:
    """Return facts and all findings. Creates a file, as a claim would be, and deletes it.

    Raises ConfigurationError for ``names``, because the table is known, and what :class:`LoadedTable` raises.
    """
    refuse_names("iceberg", names)
    table = LoadedTable(location)
    parts = ", ".join(f"{field.name} ({field.transform})" for field in table.spec.fields)
    said = f"id {table.id}, {table.state}, {len(table.schema.fields)} columns, at {table.uri}"
    return Examined(
        facts=[(f"Iceberg table {table.name}", said + (f", partitioned by {parts}" if parts else ""))],
        findings=preflight.examine(table, job or NO_JOB),
        libraries=libraries_at(table.place),
    )
