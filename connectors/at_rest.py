"""The rows of a table at rest, for ``onceward verify``: what a kind of system opens by :attr:`Kind.reader`."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["TableAtRest", "rows_of"]


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


def rows_of(batches: "Iterable[pa.RecordBatch]") -> Iterator[Sequence[Any]]:
    """Yield the rows of Arrow batches."""
    for batch in batches:
        values = [column.to_pylist(maps_as_pydicts="strict") for column in batch.columns]
        yield from zip(*values, strict=True)
