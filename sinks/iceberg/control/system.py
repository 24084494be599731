"""An Iceberg table as a system.

Claims are files beside the table (``connections/claim_files.py``), and no commits. A catalogue compares nothing but the
snapshots of branches, schemas and specs: of two processes that set a property on one state, both succeed. A claim would
have to be a snapshot of its own, on ``main``, because not every catalogue keeps other branches. Each checkpoint would
add one, and refuse the appends of others meanwhile.
"""

from collections.abc import Callable
from typing import Self

from onceward.common.links import Links
from onceward.connections.storage import Storage
from onceward.sinks.iceberg.catalog import CatalogTable
from onceward.sinks.iceberg.control.table import LoadedTable
from onceward.sinks.iceberg.documents import IcebergCommittable
from onceward.sinks.iceberg.identifiers import FOLDER
from onceward.sinks.lake.control.system import LakeSystem

__all__ = ["IcebergSystem"]


class IcebergSystem(LakeSystem):
    """One Iceberg table."""

    committable = IcebergCommittable
    folder = FOLDER

    def __init__(
        self, table: CatalogTable, *, generation: Callable[[], int | None] = lambda: None, links: Links | None = None
    ) -> None:
        """See :class:`LakeSystem`."""
        super().__init__(f"Iceberg table {table.name}", generation=generation, links=links)
        self._table = table

    @classmethod
    def open(cls, table: CatalogTable, *, generation: Callable[[], int | None] = lambda: None) -> Self:
        """Return a system that asks the catalogue when it is needed."""
        return cls(table, generation=generation)

    def load(self) -> LoadedTable:
        """See :meth:`LakeSystem.load`."""
        return LoadedTable(self._table)

    def open_storage(self) -> Storage:
        """See :meth:`LakeSystem.open_storage`."""
        return self.load().storage
