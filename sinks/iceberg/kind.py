"""Iceberg tables as a kind of system (entry point ``onceward.systems``)."""

from typing import Final

from onceward.protocol.kinds import Kind

__all__ = ["ICEBERG"]

ICEBERG: Final = Kind(
    documents={"iceberg-files": "onceward.sinks.iceberg.documents:check_committable"},
    configuration="onceward.sinks.iceberg.catalog:table_of",
    system="onceward.sinks.iceberg.control.system:IcebergSystem.open",
    doctor=("onceward.sinks.iceberg.driver.doctor:examine",),
    reader="onceward.sinks.iceberg.control.reading:open_table",
)
