"""The Delta sink that a program constructs."""

from collections.abc import Mapping
from os import PathLike
from typing import TYPE_CHECKING, Literal

from onceward.common.errors import ConfigurationError, OncewardError, PreflightError
from onceward.connectors.interfaces import JobContext, Sink
from onceward.sinks.delta.location import TableLocation
from onceward.sinks.lake.driver.arguments import participant_of

if TYPE_CHECKING:
    from onceward.sinks.delta.driver.session import DeltaSession

__all__ = ["DeltaSink"]


class DeltaSink(Sink):
    """Appends the records of each checkpoint to a Delta table, in one commit.

    table: an existing table: a directory that all executors share, or ``s3://bucket/path``.
    storage: for S3, options under the names of deltalake's ``storage_options``. Secrets are references, ``env:NAME`` or
        ``file:PATH``, that each process resolves. For an option that is not given, each process uses its environment,
        or the role of its machine.
    schema: ``strict``: columns that the table lacks are refused. ``evolve``: they are added to the table, nullable,
        before anything is written. Columns never change their types.
    on_lost: what happens when the files of a completed checkpoint are proved lost, such as after a VACUUM. ``replay``:
        their records are read and written again, before anything later. ``halt``: the job halts. ``skip``: they are
        given up, and listings report that until a person acknowledges it.
    name: the participant's name, unique within the job and the same in every run.

    Columns are found by name; those that the records lack are null. Their types are checked before anything is read.

    Raises ConfigurationError listing every invalid argument.
    """

    def __init__(
        self,
        table: str | PathLike[str],
        *,
        storage: Mapping[str, str] | None = None,
        schema: Literal["strict", "evolve"] = "strict",
        on_lost: Literal["replay", "halt", "skip"] = "replay",
        name: str = "sink",
    ) -> None:
        problems = []
        try:
            self.location = TableLocation.of(table, storage)
        except ConfigurationError as error:
            problems.append(f"table: {error}")
        self.evolves = schema == "evolve"
        self.participant = participant_of(
            "delta",
            name=name,
            schema=schema,
            schemas=("strict", "evolve"),
            on_lost=on_lost,
            problems=problems,
        )

    def connect(self, context: JobContext) -> "DeltaSession":
        """See :meth:`Sink.connect`. Raises PreflightError if there is no table, or if it cannot be read."""
        try:
            from onceward.sinks.delta.control.table import LoadedTable
            from onceward.sinks.delta.driver.session import DeltaSession
            from onceward.sinks.lake.control.tables import NoTableError
        except ModuleNotFoundError as error:
            raise ConfigurationError(
                f"DeltaSink needs {error.name}, which is not installed. Nothing was opened. Install it with: "
                "pip install 'onceward[delta]'"
            ) from error
        uri = self.location.uri
        try:
            return DeltaSession(self, context, LoadedTable(self.location))
        except NoTableError as error:
            raise PreflightError(
                f"There is no Delta table at {uri}, and this sink creates none. Nothing was started. Create it with "
                f"the columns that the job writes, for example: DeltaTable.create({uri!r}, pyarrow.schema([('id', "
                "pyarrow.int64()), ('text', pyarrow.string())]))"
            ) from error
        except OncewardError as error:
            raise PreflightError(f"The Delta table cannot be opened, so nothing was started: {error}") from error
