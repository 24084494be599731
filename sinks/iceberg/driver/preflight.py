"""What would make a table unsafe for this sink, by its metadata alone."""

from collections.abc import Iterator, Sequence

from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.transforms import UnknownTransform

from onceward.connectors.interfaces import Finding, Severity
from onceward.sinks.iceberg.control.table import LoadedTable
from onceward.sinks.iceberg.driver.columns import unwritten
from onceward.sinks.iceberg.rest import COMMIT_TABLES
from onceward.sinks.lake.driver.preflight import claim_problems

__all__ = ["examine"]

_FORMAT = "write.format.default"
_NESSIE = "nessie."


def examine(table: LoadedTable, job: str) -> Sequence[Finding]:
    """Return every finding. Raises StorageError."""
    found = [*_problems(table), *claim_problems(table.storage, job)]
    return [_finding(table, message, fix) for message, fix in found]


def examine_together(table: LoadedTable) -> Iterator[Finding]:
    """Yield what keeps the table from being committed together with others. Raises StorageError."""
    endpoints = table.endpoints()
    if endpoints is None:
        yield _finding(
            table,
            "it is to be committed together with others, and its catalogue is no REST catalogue: no other commits "
            "several tables at once",
            "reach it by a REST catalogue, or leave out together=True",
        )
    elif not endpoints:
        yield _finding(
            table,
            f"its catalogue does not say what it can, so whether it commits several tables at once ({COMMIT_TABLES}) is"
            " not known before the first checkpoint",
            "look into its documentation; leave out together=True if it cannot",
            Severity.WARNING,
        )
    elif COMMIT_TABLES not in endpoints:
        yield _finding(
            table,
            f"its catalogue does not commit several tables at once: {COMMIT_TABLES} is none of its "
            f"{len(endpoints)} endpoints",
            "use a catalogue that does, or leave out together=True",
        )


def _finding(table: LoadedTable, message: str, fix: str, severity: Severity = Severity.ERROR) -> Finding:
    return Finding(severity=severity, subject=f"Iceberg table {table.name}", message=message, fix=fix)


def _problems(table: LoadedTable) -> Iterator[tuple[str, str]]:
    for name, kind in unwritten(table.schema.fields):
        yield f"its column {name} is {kind}, which Spark has no type for", "write to a table without it"
    for name in _renamed(table.schema):
        yield (
            f"{name}, nested in a column, has another name in files, which this sink does not write",
            "write to a table where it is named with letters, digits and underscores alone",
        )
    if table.is_empty and any(name.startswith(_NESSIE) for name in table.properties):
        yield (
            "it has no snapshot yet, and Nessie does not compare the first one: of two commits at the same time, one "
            "would replace the other",
            "append to it once, also no rows: table.append(table.schema().as_arrow().empty_table())",
        )
    for field in table.spec.fields:
        if isinstance(field.transform, UnknownTransform):
            yield f"it is divided by {field.transform}, which pyiceberg does not know", "install a newer pyiceberg"
    if (written := table.properties.get(_FORMAT, "parquet")) != "parquet":
        yield f"its files are {written} ({_FORMAT}), and this sink writes Parquet", f"unset {_FORMAT}"


def _renamed(schema: Schema) -> Iterator[str]:
    in_files = sanitize_column_names(schema)
    for number in schema.field_ids:
        name, other = schema.find_column_name(number) or "", in_files.find_column_name(number) or ""
        if "." in other and name.rpartition(".")[2] != other.rpartition(".")[2]:
            yield name
