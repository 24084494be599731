"""A Delta sink for one run of a job, on the driver."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from onceward.connectors.interfaces import Chosen, Finding, JobContext
from onceward.sinks.delta.control.system import DeltaSystem
from onceward.sinks.delta.control.table import LoadedTable
from onceward.sinks.delta.driver import columns, preflight
from onceward.sinks.delta.executor.writer import DeltaSlotWriter
from onceward.sinks.lake.control.evolving import evolve
from onceward.sinks.lake.driver.session import VOTE_BYTES, LakeSession
from onceward.sinks.lake.driver.types import spark_type

if TYPE_CHECKING:
    from onceward.sinks.delta.driver.sink import DeltaSink

__all__ = ["DeltaSession"]

_INDEXED = "delta.dataSkippingNumIndexedCols"


class DeltaSession(LakeSession):
    def __init__(self, sink: "DeltaSink", context: JobContext, table: LoadedTable) -> None:
        """``table``: as it was when the sink was connected."""
        system = DeltaSystem(sink.location, generation=lambda: self._generation, links=context.links)
        super().__init__(sink.participant, context, system, table)
        self._location = sink.location
        self._table = table
        self._fields: Sequence[Mapping[str, Any]] = table.fields()
        self._evolves = sink.evolves
        self._new: Sequence[Mapping[str, Any]] = ()
        """Columns that the records have and the table lacks: they are added before anything is written."""

    @property
    def columns(self) -> Mapping[str, Any]:
        """See :attr:`LakeSession.columns`."""
        return {str(one["name"]): one["type"] for one in self._fields}

    def preflight(self) -> Sequence[Finding]:
        return preflight.examine(self._table, self._storage, self._location.uri, self._context.job)

    def choose(self, given: Sequence[tuple[str, str]]) -> Sequence[Chosen]:
        self._new = columns.new_fields(given, self._fields, self._location.uri) if self._evolves else ()
        return columns.choose(given, [*self._fields, *self._new], self._location.uri)

    def write(self) -> DeltaSlotWriter:
        if self._new:
            self._evolve()
        indexed = int(self._table.configuration.get(_INDEXED, "32"))
        columns = self._table.arrow_schema().serialize().to_pybytes()
        return DeltaSlotWriter(
            location=self._location,
            columns=columns,
            partition_columns=self._table.partition_columns,
            indexed=indexed,
            vote_bytes=VOTE_BYTES,
        )

    def _evolve(self) -> None:
        """Add the new columns. The library drops those of files that the table does not have, without an error."""
        new = {str(field["name"]): field for field in self._new}
        self._table = evolve(
            lambda: LoadedTable(self._location),
            {name: spark_type(field["type"]) for name, field in new.items()},
            lambda table: {str(field["name"]): spark_type(field["type"]) for field in table.fields()},
            lambda table, names: table.add_columns(new[name] for name in names),
        )
        self._fields, self._new = self._table.fields(), ()
