"""Which outputs share one pass over the input, and what each of them takes of it.

A pass with several outputs is one DataFrame with a struct column for each: null where a record does not go there. Spark
then evaluates the common part once for each record, and the task that writes hands each column to its sink's writer.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from onceward.common.errors import ConfigurationError
from onceward.connectors.interfaces import Chosen, SinkSession
from onceward.driver.output import Output
from onceward.driver.spark.planning import planning
from onceward.driver.spark.schemas import quoted, simple_columns
from onceward.executor.aside import INPUT_COLUMN, REASON_COLUMN
from onceward.protocol.values import ParticipantName

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from onceward.driver.output import Expression

__all__ = ["Marks", "Pass", "Share", "chosen_by", "passes_of"]

_OF_RECORDS = ("key", "value", "headers")
"""Columns of a letter."""


@dataclass(frozen=True)
class Share:
    """What one sink gets of a pass. See :class:`Output`."""

    sink: SinkSession
    where: "Expression | None" = None
    select: "Sequence[Expression] | None" = None
    planned: bool = True
    """The plan makes its records; else the task that writes does."""

    @property
    def name(self) -> ParticipantName:
        return self.sink.participant.name


@dataclass(frozen=True)
class Marks:
    """Which rows a DataFrame marks as dead letters, and why: SQL on the columns of the transform."""

    where: str
    reason: str


@dataclass(frozen=True)
class Pass:
    """What one Spark job of a checkpoint reads, transforms and writes."""

    shares: Sequence[Share]
    transform: "Callable[[DataFrame], DataFrame] | None" = None
    whole: bool = False
    """Read the whole input, also if Spark can prove that no record meets a condition: a batch of a query makes its
    state while it is read."""
    along: Sequence[str] = ()
    """Columns of the source that go with what is made of a record, as far as the transform keeps them: a column
    :data:`INPUT_COLUMN` beside one for each sink."""
    marks: Marks | None = None
    """The task makes a letter of each row that is marked: a column :data:`REASON_COLUMN`. The transform keeps all
    columns of ``along``."""

    @property
    def _planned(self) -> Sequence[Share]:
        return [share for share in self.shares if share.planned]

    @property
    def plans(self) -> bool:
        """Whether Spark must plan it for certain: there are expressions, or a transform."""
        return (
            self.transform is not None
            or self.marks is not None
            or any(share.where is not None or share.select is not None for share in self.shares)
        )

    def dataframe(self, source: "DataFrame", copied: Sequence[str] | None = None) -> "DataFrame":
        """Return what the writers take: the columns of the only sink, or a column for each sink. Raises
        ConfigurationError listing what a sink cannot take, or naming what Spark cannot plan.

        :param copied: the columns that are written without a transform and without expressions; None = all.
        """
        common = source if self.transform is None else self.transform(source)
        every = common.columns if copied is None or self.transform is not None else copied
        try:
            return self._written(common, every)
        except Exception:
            self._require_planned(common)
            with planning(f"Output {', '.join(share.name for share in self.shares)}"):
                raise

    def _require_planned(self, common: "DataFrame") -> None:
        """Raise ConfigurationError for the first expression that Spark cannot plan even alone."""
        from pyspark.sql import functions as F  # noqa: N812

        for share in self._planned:
            if share.where is not None:
                with planning(f"Output {share.name}: where={share.where!r}"):
                    common.where(_column(share.where))
            for expression in share.select or ():
                with planning(f"Output {share.name}: {expression!r} in select="):
                    alone = _column(expression)
                    common.select(alone if len(self._planned) == 1 else F.struct(alone))
        if self.marks is not None:
            with planning(f"dead_letters: where={self.marks.where!r}"):
                common.where(self.marks.where)
            with planning(f"dead_letters: reason={self.marks.reason!r}"):
                common.select(_column(self.marks.reason).cast("string"))
            with planning("dead_letters: the columns of a letter"):
                common.select(*map(quoted, self.along))

    def _written(self, common: "DataFrame", every: Sequence[str]) -> "DataFrame":
        if len(self._planned) == 1 and not self.along:
            (share,) = self._planned
            kept = common if share.where is None else common.where(self._met(_column(share.where)))
            if share.select is not None or every != common.columns:
                kept = kept.select(*_expressions(share, every))
            return chosen_by(share.sink, kept)
        return self._side_by_side(common, every)

    def _side_by_side(self, common: "DataFrame", every: Sequence[str]) -> "DataFrame":
        from pyspark.sql import functions as F  # noqa: N812

        given = []
        for share in self._planned:
            record = F.struct(*_expressions(share, every))
            if share.where is not None:
                record = F.when(_column(share.where), record)
            given.append(record.alias(share.name))
        if self.marks is not None:
            reason = F.coalesce(_column(self.marks.reason).cast("string"), F.lit(""))
            given.append(F.when(_column(self.marks.where), reason).alias(REASON_COLUMN))
        places = [*(share.name for share in self._planned), *([] if self.marks is None else [REASON_COLUMN])]
        if kept := [F.col(quoted(name)) for name in self.along if name in common.columns or self.marks is not None]:
            given.append(F.struct(*kept).alias(INPUT_COLUMN))
        wide = common.select(*given)
        if self.marks is not None:
            self._require_letters(wide)
        record = F.col(INPUT_COLUMN)
        if all(share.where is not None for share in self._planned):
            some = F.expr(" or ".join(f"{quoted(name)} is not null" for name in places))
            if kept and not self.whole:
                # Spark would evaluate a filter before all columns, and what both use twice, such as a parser
                record = F.when(some, record).alias(INPUT_COLUMN)
            else:
                wide = wide.where(self._met(some))
        given = [_chosen(share, wide) for share in self._planned]
        return wide.select(*given, *(F.col(name) for name in places[len(given) :]), *(record for _ in kept[:1]))

    def _require_letters(self, wide: "DataFrame") -> None:
        """Raise ConfigurationError for columns of which no letter can be made."""
        for share in self.shares:
            if not share.planned:
                _choose(share, wide, INPUT_COLUMN, _OF_RECORDS)

    def _met(self, condition: "Column") -> "Column":
        from pyspark.sql import functions as F  # noqa: N812

        # never true, and not known to Spark when it plans
        return condition | (F.spark_partition_id() < 0) if self.whole else condition

    def choices(self, schema: str, copied: Sequence[str]) -> Mapping[str, Mapping[str, str]] | None:
        """Return the source column for each column of each writer, if the pass does no more than choose columns of the
        source; None if Spark must run it. Raises ConfigurationError as :meth:`dataframe` does."""
        known = simple_columns(schema)
        if self.transform is not None or self.marks is not None or known is None:
            return None
        found: dict[str, Mapping[str, str]] = {}
        for share in self._planned:
            names = copied if share.select is None else share.select
            if share.where is not None or not all(isinstance(name, str) and name in known for name in names):
                return None
            chosen = share.sink.choose([(str(name), known[str(name)]) for name in names])
            if any(one.cast is not None for one in chosen):
                return None
            found[share.name] = {one.name: one.column for one in chosen}
        return found


def passes_of(
    outputs: Mapping[ParticipantName, Output],
    sinks: Sequence[SinkSession],
    transform: "Callable[[DataFrame], DataFrame] | None",
    *,
    unplanned: ParticipantName | None = None,
    along: Sequence[str] = (),
    marks: Marks | None = None,
) -> Sequence[Pass]:
    """Return the passes of a job: one for all outputs without a transform of their own, and one for each other.

    ``unplanned``: the output whose records the tasks make. ``along``, ``marks``: see :class:`Pass`; of the first
    pass.
    """
    by_name = {sink.participant.name: sink for sink in sinks}
    transform = transform and _planned("transform", transform)
    shared = [
        Share(by_name[name], output.where, output.select, planned=name != unplanned)
        for name, output in outputs.items()
        if not output.transform
    ]
    branches = [
        Pass([Share(by_name[name])], _composed(transform, _planned(f"Output {name}: transform", output.transform)))
        for name, output in outputs.items()
        if output.transform
    ]
    return [*([Pass(shared, transform, along=along, marks=marks)] if shared else []), *branches]


def _planned(what: str, transform: "Callable[[DataFrame], DataFrame]") -> "Callable[[DataFrame], DataFrame]":
    def planned(df: "DataFrame") -> "DataFrame":
        with planning(what):
            return transform(df)

    return planned


def _composed(
    first: "Callable[[DataFrame], DataFrame] | None", then: "Callable[[DataFrame], DataFrame]"
) -> "Callable[[DataFrame], DataFrame]":
    return then if first is None else lambda df: then(first(df))


def chosen_by(sink: SinkSession, df: "DataFrame") -> "DataFrame":
    """Return the columns that the sink's writer takes. Raises ConfigurationError listing what it cannot take."""
    columns = [(field.name, field.dataType.simpleString()) for field in df.schema.fields]
    return df.selectExpr(*(f"{_taken(quoted(one.column), one)} as {quoted(one.name)}" for one in sink.choose(columns)))


def _chosen(share: Share, wide: "DataFrame") -> "Column":
    """The column of a sink, with the fields that its writer takes."""
    from pyspark.sql import functions as F  # noqa: N812

    chosen, record = _choose(share, wide, share.name), quoted(share.name)
    fields = [F.expr(_taken(f"{record}.{quoted(one.column)}", one)).alias(one.name) for one in chosen]
    return F.when(F.expr(f"{record} is not null"), F.struct(*fields)).alias(share.name)


def _choose(share: Share, wide: "DataFrame", column: str, fields: Collection[str] | None = None) -> Sequence[Chosen]:
    """Return what a sink takes of ``fields`` of a struct, None = all. Raises ConfigurationError."""
    from pyspark.sql.types import StructType

    kind = wide.schema[column].dataType
    assert isinstance(kind, StructType)
    given = [(one.name, one.dataType.simpleString()) for one in kind.fields if fields is None or one.name in fields]
    try:
        return share.sink.choose(given)
    except ConfigurationError as error:
        raise ConfigurationError(f"Output {share.name}: {error}") from None


def _taken(column: str, one: Chosen) -> str:
    return column if one.cast is None else f"cast({column} as {one.cast})"


def _column(expression: "Expression") -> "Column":
    from pyspark.sql import functions as F  # noqa: N812

    return F.expr(expression) if isinstance(expression, str) else expression


def _expressions(share: Share, every: Sequence[str]) -> "Sequence[Column]":
    from pyspark.sql import functions as F  # noqa: N812

    if share.select is None:
        return [F.col(quoted(name)) for name in every]
    return list(map(_column, share.select))
