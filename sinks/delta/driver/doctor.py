"""What ``onceward doctor`` asks a Delta table: the preflight of a sink, without a job that starts."""

from collections.abc import Sequence

from onceward.common.errors import ConfigurationError
from onceward.connectors.interfaces import Examined
from onceward.sinks.delta.control.table import LoadedTable
from onceward.sinks.delta.driver import preflight
from onceward.sinks.delta.location import TableLocation

__all__ = ["examine"]

_NO_JOB = "doctor"
"""In whose folder the probe is written if no job is named."""


def examine(location: TableLocation, names: Sequence[str], job: str | None) -> Examined:
    """Return facts and all findings. Creates a file, as a claim would be, and deletes it.

    Raises ConfigurationError for ``names``, because the table is known, and what :class:`LoadedTable` raises.
    """
    if names:
        raise ConfigurationError(
            f"{names[0]} names a table, and a table of kind delta in the systems file is one itself. Leave it out."
        )
    table = LoadedTable(location)
    features = ", ".join(sorted(table.writer_features)) or "none"
    divided = f", partitioned by {', '.join(table.partition_columns)}" if table.partition_columns else ""
    said = (
        f"id {table.id}, version {table.version}, {len(table.fields())} columns{divided}, writer version "
        f"{table.writer_version}, features {features}"
    )
    return Examined(
        facts=[(f"Delta table {location.uri}", said)],
        findings=preflight.examine(table, location.storage(), location.uri, job or _NO_JOB),
    )
