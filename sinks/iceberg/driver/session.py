"""An Iceberg sink for one run of a job, on the driver."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyiceberg.types import IcebergType

from onceward.connectors.interfaces import Chosen, Finding, JobContext
from onceward.sinks.iceberg.control.system import IcebergSystem
from onceward.sinks.iceberg.control.table import LoadedTable, columns_of
from onceward.sinks.iceberg.driver import preflight
from onceward.sinks.iceberg.driver.columns import columns_in, new_columns, spark_type
from onceward.sinks.iceberg.executor.writer import IcebergSlotWriter
from onceward.sinks.lake.control.evolving import evolve
from onceward.sinks.lake.driver.columns import Column, choose_columns
from onceward.sinks.lake.driver.session import VOTE_BYTES, LakeSession

if TYPE_CHECKING:
    from onceward.sinks.iceberg.driver.sink import IcebergSink

__all__ = ["IcebergSession"]


class IcebergSession(LakeSession):
    def __init__(self, sink: "IcebergSink", context: JobContext, table: LoadedTable) -> None:
        """``table``: as it was when the sink was connected."""
        system = IcebergSystem(sink.table, generation=lambda: self._generation, links=context.links)
        super().__init__(sink.participant, context, system, table)
        self._load = system.load
        self._table = table
        self._evolves = sink.evolves
        self._together = sink.table.catalog_address if sink.together else ""
        self._new: Mapping[str, IcebergType] = {}
        """Columns that the records have and the table lacks: they are added before anything is written."""

    @property
    def columns(self) -> Mapping[str, Any]:
        """See :attr:`LakeSession.columns`."""
        return columns_of(self._table.schema)

    def preflight(self) -> Sequence[Finding]:
        found = preflight.examine(self._table, self._context.job)
        return [*found, *preflight.examine_together(self._table)] if self._together else found

    def choose(self, given: Sequence[tuple[str, str]]) -> Sequence[Chosen]:
        columns, name = columns_in(self._table.schema.fields), self._table.name
        self._new = new_columns(given, columns, name) if self._evolves else {}
        added = [Column(name, spark_type(kind), nullable=True) for name, kind in self._new.items()]
        return choose_columns(given, [*columns, *added], f"Iceberg table {name}")

    def write(self) -> IcebergSlotWriter:
        if self._new:
            new = self._new
            self._table = evolve(
                self._load,
                {name: spark_type(kind) for name, kind in new.items()},
                lambda table: {one.name: one.type for one in columns_in(table.schema.fields)},
                lambda table, names: table.add_columns({name: new[name] for name in names}),
            )
            self._new = {}
        table = self._table
        return IcebergSlotWriter(
            place=table.place,
            schema_json=table.schema.model_dump_json(),
            spec_json=table.spec.model_dump_json(),
            properties={key: value for key, value in table.properties.items() if key.startswith("write.")},
            vote_bytes=VOTE_BYTES,
        )
