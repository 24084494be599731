"""An Iceberg table as a system.

Claims are files beside the table (``connections/claim_files.py``), and no commits. A catalogue compares nothing but the
snapshots of branches, schemas and specs: of two processes that set a property on one state, both succeed. A claim would
have to be a snapshot of its own, on ``main``, because not every catalogue keeps other branches. Each checkpoint would
add one, and refuse the appends of others meanwhile.
"""

from collections.abc import Callable, Sequence
from typing import Self, cast

from onceward.common.links import Links
from onceward.connections.storage import Storage
from onceward.protocol.committing import Part
from onceward.protocol.values import Committable, Settlement
from onceward.sinks.iceberg.catalog import CatalogTable
from onceward.sinks.iceberg.control.table import LoadedTable
from onceward.sinks.iceberg.control.together import write_together
from onceward.sinks.iceberg.documents import IcebergCommittable
from onceward.sinks.iceberg.identifiers import FOLDER
from onceward.sinks.lake.control import committing
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

    def together(self, committable: Committable) -> str:
        """See :meth:`System.together`. Raises HaltedError for an unreadable document."""
        return self.committable.of(committable).together

    def commit_together(
        self, parts: Sequence[Part], *, give_up: Callable[[], bool] = lambda: False
    ) -> Sequence[Sequence[Settlement]]:
        """See :meth:`System.commit_together`. Raises HaltedError as :meth:`commit` does."""
        tables = [(cast(Self, part.system), part) for part in parts]
        wanted = [(table, table.to_commit(one, part.author)) for table, part in tables for one in part.committables]
        found = committing.commit([(table.load, one) for table, one in wanted], give_up, self._failed, write_together)
        settled: dict[int, list[Settlement]] = {id(table): [] for table, _ in tables}
        for (table, one), each in zip(wanted, found, strict=bool(found)):
            if table.has_ended(one, each, give_up):
                settled[id(table)].append(each)
        return [*settled.values()]

    def load(self) -> LoadedTable:
        """See :meth:`LakeSystem.load`."""
        return LoadedTable(self._table)

    def open_storage(self) -> Storage:
        """See :meth:`LakeSystem.open_storage`."""
        return self.load().storage
