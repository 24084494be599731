"""What ``onceward doctor`` asks a Delta table: the preflight of a sink, without a job that starts."""

from collections.abc import Sequence

from onceward.connectors.interfaces import Examined
from onceward.sinks.delta.control.table import LoadedTable
from onceward.sinks.delta.driver import preflight
from onceward.sinks.delta.executor.writer import libraries_at
from onceward.sinks.delta.location import TableLocation
from onceward.sinks.lake.driver.preflight import NO_JOB
from onceward.sinks.lake.location import refuse_names

__all__ = ["examine"]


def examine(location: TableLocation, names: Sequence[str], job: str | None) -> Examined:
    """Return facts and all findings. Creates a file, as a claim would be, and deletes it.

    Raises ConfigurationError for ``names``, because the table is known, and what :class:`LoadedTable` raises.
    """
    refuse_names("delta", names)
    table = LoadedTable(location)
    features = ", ".join(sorted(table.writer_features)) or "none"
    divided = f", partitioned by {', '.join(table.partition_columns)}" if table.partition_columns else ""
    said = (
        f"id {table.id}, version {table.version}, {len(table.fields())} columns{divided}, writer version "
        f"{table.writer_version}, features {features}"
    )
    return Examined(
        facts=[(f"Delta table {location.uri}", said)],
        findings=preflight.examine(table, location.storage(), location.uri, job or NO_JOB),
        libraries=libraries_at(location),
    )
