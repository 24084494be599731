"""What Spark cannot plan: its analysis knows the program and schemas, and no record, so no later try can plan it."""

import contextlib
from collections.abc import Iterator

from onceward.common.errors import ConfigurationError
from onceward.driver.causes import cause_of

__all__ = ["planning"]

_MAY_APPEAR = frozenset(
    {"PATH_NOT_FOUND", "SCHEMA_NOT_FOUND", "TABLE_OR_VIEW_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA", "VIEW_NOT_FOUND"}
)
"""Spark's conditions that end without a change of the program: another program writes the table or the file."""


@contextlib.contextmanager
def planning(what: str) -> Iterator[None]:
    """Raise ConfigurationError for what Spark cannot plan inside, with its sentence; every other error as it is.

    :param what: what is planned, as the program wrote it.
    """
    try:
        yield
    except Exception as error:
        if not _is_permanent(error):
            raise
        said = cause_of(error).text.rstrip(".")
        raise ConfigurationError(
            f"{what}: Spark cannot plan it: {said}. Nothing was written with it. Correct the program, and start it "
            "again."
        ) from error


def _is_permanent(error: Exception) -> bool:
    from pyspark.errors import AnalysisException, PySparkAttributeError

    if isinstance(error, AnalysisException):
        return error.getCondition() not in _MAY_APPEAR
    return isinstance(error, PySparkAttributeError)  # df.colum
