"""The rows of a table at rest, for ``onceward verify``: what a kind of system opens by :attr:`Kind.reader`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ArrowTable", "TableAtRest"]


class TableAtRest(ABC):
    """A table as it was when it was opened, whatever is written to it since. Changes nothing."""

    name: str
    """What the system calls it, such as ``public.orders``."""
    columns: Mapping[str, str]
    """Every column and its type. ``timestamp``, ``timestamp_ntz``, ``date``, ``float``, ``double``, ``decimal`` and
    ``binary`` mean what Spark means by them; any other word says nothing."""

    @abstractmethod
    def rows(self, columns: Sequence[str]) -> Iterator[Sequence[Any]]:
        """Yield all rows, each with its values of ``columns`` as Python objects; in any order, in little memory. Called
        again, yields the same rows. Raises OncewardError."""

    @abstractmethod
    def close(self) -> None:
        """Release clients."""


class ArrowTable(TableAtRest):
    """A table whose library reads it as Arrow batches, and keeps no connection."""

    def __init__(
        self,
        name: str,
        columns: Mapping[str, str],
        batches: "Callable[[Sequence[str]], Iterable[pa.RecordBatch]]",
    ) -> None:
        """``batches``: reads the values of these columns."""
        self.name, self.columns, self._batches = name, columns, batches

    def rows(self, columns: Sequence[str]) -> Iterator[Sequence[Any]]:
        """See :meth:`TableAtRest.rows`."""
        for batch in self._batches(columns):
            values = [column.to_pylist(maps_as_pydicts="strict") for column in batch.columns]
            yield from zip(*values, strict=True)

    def close(self) -> None:
        """Nothing is open between calls."""
