"""The Iceberg sink that a program constructs."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal

from onceward.common.errors import ConfigurationError, OncewardError, PreflightError
from onceward.connectors.interfaces import JobContext, Sink
from onceward.sinks.iceberg.catalog import CatalogTable
from onceward.sinks.lake.driver.arguments import participant_of

if TYPE_CHECKING:
    from onceward.sinks.iceberg.driver.session import IcebergSession

__all__ = ["IcebergSink"]


class IcebergSink(Sink):
    """Appends the records of each checkpoint to an Iceberg table, in one commit.

    table: the name of an existing table with its namespace, such as ``shop.orders``. Its location is in S3, or a
        directory that all executors share.
    catalog: the settings of its catalogue, as pyiceberg has them, such as ``{"type": "rest", "uri": ...}``. ``name`` is
        its name, where that matters: a SQL catalogue keeps tables under it. A secret is a reference, ``env:NAME`` or
        ``file:/absolute/path``.
    schema: ``check``: columns that the table lacks are refused. ``evolve``: they are added to the table, and may be
        null, before anything is written. Columns never change their types.
    on_lost: what happens when the files of a completed checkpoint are proved lost, such as after a removal of orphan
        files. ``replay``: their records are read and written again, before anything later. ``halt``: the job halts.
        ``skip``: they are given up, and listings report that until a person acknowledges it.
    together: commit each checkpoint to this table, and to the job's other tables of this catalogue that have it, by one
        commit: a reader sees it in all of them or in none. Only REST catalogues can. What was lost in one table, and is
        written again, comes later than the rest.
    name: the participant's name, unique within the job and the same in every run.

    Columns are found by name; those that the records lack are null. Their types are checked before anything is read.

    Raises ConfigurationError listing every invalid argument.
    """

    def __init__(
        self,
        table: str,
        *,
        catalog: Mapping[str, str],
        schema: Literal["check", "evolve"] = "check",
        on_lost: Literal["replay", "halt", "skip"] = "replay",
        together: bool = False,
        name: str = "sink",
    ) -> None:
        problems = [*_together_problems(together)]
        try:
            self.table = CatalogTable.of(table, catalog)
        except ConfigurationError as error:
            problems.append(str(error))
        self.together = together
        self.evolves = schema == "evolve"
        self.participant = participant_of(
            "iceberg",
            name=name,
            schema=schema,
            schemas=("check", "evolve"),
            on_lost=on_lost,
            problems=problems,
        )

    def connect(self, context: JobContext) -> "IcebergSession":
        """See :meth:`Sink.connect`. Raises PreflightError if there is no table, or if it cannot be read."""
        try:
            from onceward.sinks.iceberg.control.table import LoadedTable
            from onceward.sinks.iceberg.driver.session import IcebergSession
            from onceward.sinks.lake.control.tables import NoTableError
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"IcebergSink needs {error.name}, which is not installed. Nothing was opened. Install it with: "
                "pip install 'onceward[iceberg]'"
            ) from error
        try:
            return IcebergSession(self, context, LoadedTable(self.table))
        except NoTableError as error:
            raise PreflightError(
                f"{error} This sink creates none. Nothing was started. Create it with the columns that the job writes, "
                f"for example: catalog.create_table({self.table.name!r}, pyarrow.schema([('id', pyarrow.int64()), "
                "('text', pyarrow.string())]))"
            ) from error
        except OncewardError as error:
            raise PreflightError(f"The Iceberg table cannot be opened, so nothing was started: {error}") from error


def _together_problems(together: object) -> Iterator[str]:
    if not isinstance(together, bool):
        yield f"together: {together!r} is neither True nor False"
