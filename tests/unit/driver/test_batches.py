"""A function on batches keeps to its contract, or the driver gets an error that names the violation."""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from onceward.common.errors import ConfigurationError
from onceward.executor.functions import Batches, applied, unusable, unusable_in

BATCHES = [pa.RecordBatch.from_pydict({"value": [str(n)]}) for n in range(3)]


def given() -> Iterator[pa.RecordBatch]:
    yield from BATCHES


def doubling(batches: Batches) -> Batches:
    for batch in batches:
        yield batch
        yield batch


def gathering(batches: Batches) -> Any:
    return [pa.concat_batches(list(batches))]


def first_only(batches: Batches) -> Batches:
    yield next(batches)


def taking_all_but_the_end(batches: Batches) -> Batches:
    for _ in range(3):
        yield next(batches)


def not_even_looking(batches: Batches) -> Batches:
    yield from ()


@pytest.mark.parametrize(("function", "records"), [(doubling, 6), (gathering, 3), (taking_all_but_the_end, 3)])
def test_any_number_of_batches_may_come_out_when_all_have_gone_in(
    function: Callable[[Batches], Batches], records: int
) -> None:
    assert sum(batch.num_rows for batch in applied(function, given())) == records


@pytest.mark.parametrize("function", [first_only, not_even_looking])
def test_a_function_that_leaves_batches_is_found_out(function: Callable[[Batches], Batches]) -> None:
    with pytest.raises(ConfigurationError, match="ended before it had taken all batches"):
        list(applied(function, given()))


def test_batches_that_are_closed_by_the_function_are_not_taken_for_read() -> None:
    def closing(batches: Any) -> Batches:
        yield next(batches)
        if hasattr(batches, "close"):
            batches.close()

    with pytest.raises(ConfigurationError, match="ended before"):
        list(applied(closing, given()))


def test_an_error_survives_the_way_through_spark() -> None:
    error = ConfigurationError('Two lines\nwith <marks> and "quotes" and ü: nothing was written.')
    wrapped = (
        f"PythonException: Traceback ...\n  File x\ncoordinator.errors.ConfigurationError: {unusable(error)}\n\tat org"
    )
    found = unusable_in(wrapped)
    assert found is not None
    assert str(found) == str(error)
    assert unusable_in("PythonException: ValueError: poisoned") is None
