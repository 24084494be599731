"""A kind of system, as an installed package describes it (entry points ``onceward.systems``).

The name of an entry point is the kind, such as ``kafka``; its value is a :class:`Kind`. A kind names its parts as text,
``module:attribute``, and each process loads what it needs: a coordinator checks documents without any client installed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from onceward.protocol.values import Author, Document

__all__ = ["DocumentChecker", "Kind", "NamedSystem", "PositionMover"]

DocumentChecker: TypeAlias = Callable[[Document, Document | None, Author], None]
"""(document, base, author) -> None. ``base``: the same participant's positions in the last completed checkpoint.

Raises ValueError for an unknown version, for a meaningless body, for positions that go backwards from ``base``, and for
a committable that names a transaction of anyone but ``author``: the coordinator may end it with rights that its driver
does not have."""

PositionMover: TypeAlias = Callable[[Document, str, int, int], tuple[Document, int]]
"""(document, topic, partition, offset) -> (document, former offset): the same positions with one partition moved.
Raises ValueError when there is no such partition, or when records would be read again."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Where the parts of a kind of system are; those that it does not have are left out."""

    documents: Mapping[str, str] = field(default_factory=dict)
    """Kind of document -> its :data:`DocumentChecker`. Documents of other kinds are stored unchecked."""
    positions: Mapping[str, str] = field(default_factory=dict)
    """Kind of document -> its :data:`PositionMover`."""
    configuration: str = ""
    """(name, table of a systems file) -> configuration. Raises ConfigurationError that lists all problems."""
    system: str = ""
    """(configuration, ``generation=``) -> :class:`System`, which connects at its first use. ``generation``: returns the
    generation for which it works, or None."""
    reader: str = ""
    """(configuration, name of a table, empty if the configuration says which) -> :class:`TableAtRest`, for ``onceward
    verify``. Raises OncewardError."""
    doctor: Sequence[str] = ()
    """(configuration, names of topics or tables, job) -> :class:`Examined`, for ``onceward doctor``. ``job``: its
    rights are asked for, too; None = no job's. Raises OncewardError."""
    letters: str = ""
    """(configuration, topic, :class:`Wanted`, ``partitions=``, ``columns=``) -> the :class:`Source` of dead letters: as
    records for the input (``partitions``: how many each of its topics has), or with the ``columns`` of the input."""
    sink: str = ""
    """(configuration, ``topics=``) -> the :class:`Sink` that writes them to the input."""


@dataclass(frozen=True, kw_only=True)
class NamedSystem:
    """A system that this process may reach."""

    kind: str
    configuration: Any
    """What the kind made of the table in the systems file."""
