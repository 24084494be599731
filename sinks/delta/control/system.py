"""A Delta table as a system."""

from collections.abc import Callable
from typing import Self

from onceward.common.links import Links
from onceward.connections.storage import Storage
from onceward.sinks.delta.control.table import LoadedTable
from onceward.sinks.delta.documents import DeltaCommittable
from onceward.sinks.delta.location import TableLocation
from onceward.sinks.lake.control.system import LakeSystem

__all__ = ["DeltaSystem"]


class DeltaSystem(LakeSystem):
    """One Delta table."""

    committable = DeltaCommittable
    folder = ""

    def __init__(
        self,
        location: TableLocation,
        *,
        generation: Callable[[], int | None] = lambda: None,
        links: Links | None = None,
    ) -> None:
        """See :class:`LakeSystem`."""
        super().__init__(f"Delta table {location.uri}", generation=generation, links=links)
        self._location = location

    @classmethod
    def open(cls, location: TableLocation, *, generation: Callable[[], int | None] = lambda: None) -> Self:
        """Return a system that reads the table when it is needed."""
        return cls(location, generation=generation)

    def load(self) -> LoadedTable:
        """See :meth:`LakeSystem.load`."""
        return LoadedTable(self._location)

    def open_storage(self) -> Storage:
        """See :meth:`LakeSystem.open_storage`."""
        return self._location.storage()
