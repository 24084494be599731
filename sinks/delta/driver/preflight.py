"""What would make a table unsafe for this sink, by its log alone."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onceward.connections.storage import Storage
from onceward.connectors.interfaces import Finding, Severity
from onceward.sinks.delta.control.table import LoadedTable
from onceward.sinks.lake.driver.preflight import claim_problems

__all__ = ["KEPT", "examine"]

# What tasks write keeps to these: they only add files, and check nothing of a column but its type and nulls. And the
# library commits to a table that has them.
KEPT = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkConstraints",
        "deletionVectors",
        "generatedColumns",
        "invariants",
        "timestampNtz",
        "v2Checkpoint",
    }
)
_PARTITION_TYPES = (*("string", "byte", "short", "integer", "long", "date", "timestamp", "timestamp_ntz", "boolean"),)
_EXPIRY = "delta.setTransactionRetentionDuration"


def examine(table: LoadedTable, storage: Storage, uri: str, job: str) -> Sequence[Finding]:
    """Return every finding. Raises StorageError."""
    found = [*_features(table), *_rules(table.fields(), table.configuration), *claim_problems(storage, job)]
    return [
        Finding(severity=Severity.ERROR, subject=f"Delta table {uri}", message=message, fix=fix)
        for message, fix in found
    ]


def _features(table: LoadedTable) -> Iterator[tuple[str, str]]:
    unknown = sorted(set(table.writer_features) - KEPT)
    if unknown:
        yield (
            f"it has the writer features {', '.join(unknown)}, which this sink does not keep to",
            "drop these features, or write to another table",
        )
    if table.writer_version > 7:
        yield f"it needs writer version {table.writer_version}, this sink knows 7", "write to another table"
    if table.configuration.get("delta.columnMapping.mode", "none") != "none":
        yield (
            "its columns have other names in its files (delta.columnMapping.mode), which this sink does not write",
            "write to a table without column mapping",
        )
    for field in table.fields():
        if field["name"] in table.partition_columns and not _divides(field["type"]):
            yield (
                f"it is partitioned by {field['name']}, a {field['type']}, which this sink does not write",
                "partition it by text, whole numbers, decimals, dates, timestamps or booleans",
            )
    if _EXPIRY in table.configuration:
        yield (
            f"it has {_EXPIRY}={table.configuration[_EXPIRY]}, so the proof of a commit expires and records could be "
            "written twice",
            f"unset {_EXPIRY}",
        )


def _divides(kind: object) -> bool:
    return kind in _PARTITION_TYPES or (isinstance(kind, str) and kind.startswith("decimal("))


def _rules(fields: Sequence[Mapping[str, Any]], configuration: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name in sorted(configuration):
        if name.startswith("delta.constraints."):
            yield (
                f"it has the constraint {name.removeprefix('delta.constraints.')}, which this sink does not check",
                "drop the constraint, and check it in the transform",
            )
    for field in fields:
        for key, what in (
            ("delta.invariants", "an invariant"),
            ("delta.generationExpression", "a generated value"),
            ("delta.identity.start", "an identity"),
        ):
            if key in field["metadata"]:
                yield (
                    f"its column {field['name']} has {what}, which this sink does not keep to",
                    "write to a table without it, and make the value in the transform",
                )
