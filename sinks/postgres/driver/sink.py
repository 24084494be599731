"""The PostgreSQL sink that a program constructs."""

from collections.abc import Iterator, Sequence
from typing import Literal

from onceward.common.errors import ConfigurationError, PreflightError
from onceward.connectors.interfaces import JobContext, Sink
from onceward.protocol.values import OnLost, Participant, ParticipantName, Role
from onceward.sinks.postgres.driver.session import PostgresSinkSession
from onceward.sinks.postgres.dsn import checked
from onceward.sinks.postgres.errors import DatabaseError

__all__ = ["PostgresSink"]


class PostgresSink(Sink):
    """Writes the rows of each checkpoint to a table, in one transaction that any process can carry out.

    dsn: where the database is: ``"env:NAME"`` or ``"file:/absolute/path"`` with a connection string, or a connection
        string without a password.
    table: name of the table as in SQL, such as ``orders`` or ``shop.orders``. Each column of the DataFrame is written
        to the column of that name.
    mode: ``append``: every row is inserted. ``upsert``: a row replaces the one with an equal key, or is inserted; of
        several rows with one key, the last one by input order counts.
    key: the columns of the key; needed for ``upsert``. The table has a unique index on exactly these, and none is null.
    delete: for ``upsert``, the name of a column of Booleans that is not written: where it is true, the row with this
        key is deleted.
    on_lost: what happens when the rows of a completed checkpoint are proved lost. ``replay``: they are read and written
        again, before anything later. ``halt``: the job halts. ``skip``: they are given up, and listings report that
        until a person acknowledges it.
    name: the participant's name, unique within the job and the same in every run.

    Raises ConfigurationError listing every invalid argument.
    """

    def __init__(
        self,
        dsn: str,
        table: str,
        *,
        mode: Literal["append", "upsert"] = "append",
        key: Sequence[str] = (),
        delete: str | None = None,
        on_lost: Literal["replay", "halt", "skip"] = "replay",
        name: str = "sink",
    ) -> None:
        problems = [*_problems(table, on_lost), *_key_problems(mode, key, delete)]
        try:
            self.dsn = checked(dsn)
        except ConfigurationError as error:
            problems.append(str(error))
        try:
            called = ParticipantName(name)
        except (TypeError, ValueError) as error:
            problems.append(f"name: {error}")
        if problems:
            raise ConfigurationError(
                "This PostgresSink cannot be used; nothing was connected. Change these arguments:\n"
                + "\n".join(f"  - {problem}" for problem in problems)
            )
        self.participant = Participant(name=called, role=Role.SINK, kind="postgres", on_lost=OnLost(on_lost))
        self.table = table
        self.key = tuple(key)
        """Empty to append."""
        self.delete = delete or ""

    def connect(self, context: JobContext) -> PostgresSinkSession:
        """See :meth:`Sink.connect`. Raises PreflightError within about 10 s if that is impossible."""
        session = PostgresSinkSession(self, context)
        try:
            session.database_id = session.system().id()
        except DatabaseError as error:
            session.close()
            raise PreflightError(f"{error} Nothing was started.") from error
        except BaseException:
            session.close()
            raise
        return session


def _problems(table: object, on_lost: object) -> Iterator[str]:
    if not isinstance(table, str) or not table.strip():
        yield "table: give its name as in SQL, such as orders or shop.orders"
    if on_lost not in ("replay", "halt", "skip"):
        yield f"on_lost: {on_lost!r} is none of 'replay', 'halt', 'skip'"


def _key_problems(mode: object, key: object, delete: object) -> Iterator[str]:
    if mode not in ("append", "upsert"):
        yield f"mode: {mode!r} is neither 'append' nor 'upsert'"
    if isinstance(key, str) or not isinstance(key, Sequence) or not all(isinstance(one, str) and one for one in key):
        yield 'key: give a list of column names, such as ["order_id"]'
    elif mode == "upsert" and not key:
        yield "key: name the columns of the key, because mode is 'upsert'"
    elif mode == "append" and key:
        yield "key: needs mode='upsert'"
    elif len(set(key)) != len(key):
        yield "key: names a column twice"
    elif delete is not None and delete in key:
        yield "delete: a column of the key says nothing about a deletion"
    if delete is not None and (not isinstance(delete, str) or not delete or mode != "upsert"):
        yield "delete: name a column of Booleans, with mode='upsert'"
