"""Functions on one record, as functions on batches.

Runs on executors: the standard library, and pyarrow where batches are made.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from onceward.common.errors import ConfigurationError
from onceward.executor.letters import PASSING, cut

if TYPE_CHECKING:
    import pyarrow as pa

    Batches: TypeAlias = Iterator[pa.RecordBatch]

__all__ = ["PerRecord", "per_record"]

_EXAMPLE = 200
"""Characters of an error of Arrow: it may quote a record."""


class PerRecord:
    """See :func:`per_record`."""

    def __init__(self, function: Callable[[dict[str, Any]], Any], schema: "pa.Schema | None") -> None:
        self._function = function
        self._schema = schema

    def __call__(self, batches: "Batches") -> Iterator[Any]:
        def refused(row: int, error: Exception) -> None:
            raise error

        return self.sparing(refused)(batches)

    def sparing(
        self, refused: Callable[[int, Exception], object], made_of: Callable[[Sequence[int]], object] = len
    ) -> "Callable[[Batches], Iterator[Any]]":
        """Return a function on batches that hands what the function raises, with the record's row in its batch, to
        ``refused``; and to ``made_of``, before it yields a batch, the row of the record of which each of its rows is
        made."""

        def each(batches: "Batches") -> Iterator[Any]:
            for batch in batches:
                rows: dict[str | None, list[dict[str, Any]]] = {}
                records: dict[str | None, list[int]] = {}
                for number, record in enumerate(batch.to_pylist()):
                    try:
                        for name, row in _rows(self._function(record)):
                            rows.setdefault(name, []).append(row)
                            records.setdefault(name, []).append(number)
                    except PASSING:
                        raise
                    except Exception as error:  # noqa: BLE001 - what a function raises
                        refused(number, error)
                for name, some in rows.items():
                    made = _batch(some, self._schema)
                    made_of(records[name])
                    yield made if name is None else (name, made)

        return each


def per_record(
    function: Callable[[dict[str, Any]], Any], *, schema: "pa.Schema | None" = None
) -> "Callable[[Batches], Iterator[Any]]":
    """Make a function on batches, for ``transform_batches=``, of a function on one record.

    :param function: gets the columns of a record by name, such as ``{"key": b"1", "value": b"{}", "offset": 7, ...}``.
        Returns the columns to write, None to write nothing, or a list of several; with several outputs, each as a pair
        of the output's name and the columns.
    :param schema: of what it returns; without one, pyarrow infers the types of each batch.
    """
    return PerRecord(function, schema)


def _rows(made: Any) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """What a function on one record returned: names of outputs, if it gave them, and columns."""
    for one in made if isinstance(made, list) else [made]:
        match one:
            case None:
                pass
            case dict():
                yield None, one
            case (str(name), dict(row)):
                yield name, row
            case _:
                raise ConfigurationError(
                    f"per_record: the function returned {type(one).__name__}. Nothing of this checkpoint becomes "
                    "visible; its records stay unread. Return a dict of columns, None, or a list of dicts; with "
                    "several outputs, pairs of a name and a dict."
                )


def _batch(rows: Sequence[dict[str, Any]], schema: "pa.Schema | None") -> "pa.RecordBatch":
    import pyarrow as pa

    if schema is not None:
        return pa.RecordBatch.from_pylist(list(rows), schema)
    names = dict.fromkeys(name for row in rows for name in row)
    try:
        return pa.RecordBatch.from_pydict({name: [row.get(name) for row in rows] for name in names})
    except pa.ArrowException as error:
        raise ConfigurationError(
            f"per_record: the function returned columns without a common type: {cut(str(error), _EXAMPLE)}. Nothing "
            "of this checkpoint becomes visible; its records stay unread. Give per_record a schema=."
        ) from error
