"""The example's source, wrong in one way each, as in `wrong_sinks`."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
from custom_source import LineReader, LinesSource

from onceward.connectors import Document, JsonObject, Participant, Plan, Resource, Role, SplitReader
from onceward.testing import SourceCase

__all__ = ["WRONG", "lines_case"]

WRONG: dict[type[LinesSource], Sequence[str]] = {}
"""Wrong sources, each with the promises that must notice."""


def wrong(*breaks: str) -> Callable[[type[LinesSource]], type[LinesSource]]:
    def keep(source: type[LinesSource]) -> type[LinesSource]:
        WRONG[source] = breaks
        return source

    return keep


def lines_case(directory: Path, source: type[LinesSource] = LinesSource) -> SourceCase:
    """A source that reads three files in ``directory``."""
    directory.mkdir(exist_ok=True)
    files = count()

    def add(values: Sequence[bytes]) -> None:
        for value in values:
            with (directory / f"{next(files) % 3}.log").open("ab") as file:
                file.write(value + b"\n")

    def remove() -> None:
        shutil.rmtree(directory)
        directory.mkdir()

    return SourceCase(
        source=lambda: source(str(directory)),
        bounded=lambda: source(str(directory), bounded=True),
        add=add,
        remove=remove,
        within=0,
    )


def moved(split: JsonObject, **by: int) -> JsonObject:
    return {**split, **{name: max(0, split[name] + bytes_) for name, bytes_ in by.items()}}


LINE = len(b"record 1\n")


# -- every record exactly once


@wrong("plans_from_the_start_read_every_record_once")
class BeginsAtTheEnd(LinesSource):
    def resolve(self) -> Document:
        found = super().resolve()
        return replace(found, body={**found.body, "read": self._ends({})})


@wrong("an_input_that_is_empty_at_first_is_read_when_records_come")
class ReadsOnlyTheFilesOfTheStart(LinesSource):
    def plan(self, base: Document) -> Plan:
        plan = super().plan(base)
        known = base.body["read"]
        splits = tuple(split for split in plan.splits if split["file"] in known)
        return replace(plan, splits=splits, positions=replace(plan.positions, body={"read": known, "ends": None}))


@wrong("consecutive_plans_neither_overlap_nor_leave_a_gap")
class Overlaps(LinesSource):
    def plan(self, base: Document) -> Plan:
        plan = super().plan(base)
        return replace(plan, splits=tuple(moved(split, start=-LINE) for split in plan.splits))


@wrong("consecutive_plans_neither_overlap_nor_leave_a_gap", "plans_from_the_start_read_every_record_once")
class LeavesAGap(LinesSource):
    def plan(self, base: Document) -> Plan:
        plan = super().plan(base)
        return replace(
            plan, splits=tuple(moved(split, start=LINE) if split["start"] else split for split in plan.splits)
        )


@wrong("a_plan_without_news_reads_nothing")
class ReadsTheLastFileAgain(LinesSource):
    def plan(self, base: Document) -> Plan:
        plan = super().plan(base)
        if plan.splits or not base.body["read"]:
            return plan
        name, read = max(base.body["read"].items())
        return replace(plan, splits=({"file": name, "start": 0, "end": read},), records=read)


@wrong("a_plan_without_news_reads_nothing")
class CountsItsPlans(LinesSource):
    _plans = count()

    def plan(self, base: Document) -> Plan:
        plan = super().plan(base)
        return replace(
            plan, positions=replace(plan.positions, body={**plan.positions.body, "plans": next(self._plans)})
        )


@wrong("plans_from_the_start_read_every_record_once")
class CountsTooFew(LinesSource):
    def plan(self, base: Document) -> Plan:
        plan = super().plan(base)
        return replace(plan, records=min(plan.records, 1))


# -- positions


@wrong("positions_survive_json")
class StoresATuple(LinesSource):
    def snapshot(self, plan: Plan) -> Document:
        return replace(plan.positions, body={**plan.positions.body, "read at": (1, 2)})


class _RemembersPositions(LinesSource):
    """What was planned last counts, whatever the base is."""

    def open(self, context: Any) -> None:
        super().open(context)
        self._last: Document | None = None

    def plan(self, base: Document) -> Plan:
        plan = super().plan(self._last or base)
        self._last = plan.positions
        return plan


@wrong("what_a_failed_checkpoint_has_read_is_read_again")
class PlansFromItsLastPlan(_RemembersPositions):
    pass


@wrong("another_driver_continues_at_the_positions")
class StartsAgain(_RemembersPositions):
    def restore(self, positions: Document) -> None:
        self._last = self.resolve()


# -- reading


@dataclass(frozen=True)
class ReaderToTheEnd(LineReader):
    def __call__(self, split: JsonObject, columns: frozenset[str]) -> "Iterator[pa.RecordBatch]":
        yield from super().__call__({**split, "end": (Path(self.directory) / split["file"]).stat().st_size}, columns)


@dataclass(frozen=True)
class ReaderOnce(LineReader):
    """Leaves in the directory what it has begun to read."""

    def __call__(self, split: JsonObject, columns: frozenset[str]) -> "Iterator[pa.RecordBatch]":
        begun = Path(self.directory) / f"{split['file']}.{split['end']}"
        if not begun.exists():
            begun.touch()
            yield from super().__call__(split, columns)


@dataclass(frozen=True)
class ReaderOfUsedColumns(LineReader):
    def __call__(self, split: JsonObject, columns: frozenset[str]) -> "Iterator[pa.RecordBatch]":
        for batch in super().__call__(split, columns):
            yield batch.select(sorted(columns))


@wrong("splits_read_the_same_again")
class ReadsToTheEnd(LinesSource):
    def read(self) -> SplitReader:
        return ReaderToTheEnd(str(self._directory))


@wrong("a_task_may_stop_reading_halfway", "splits_read_the_same_again")
class ReadsOnce(LinesSource):
    def read(self) -> SplitReader:
        return ReaderOnce(str(self._directory))


@wrong("columns_that_are_not_used_change_no_record")
class ReadsUsedColumns(LinesSource):
    def read(self) -> SplitReader:
        return ReaderOfUsedColumns(str(self._directory))


@wrong("fewer_splits_hold_the_same_records")
class CoalescesToTheFirst(LinesSource):
    def plan(self, base: Document) -> Plan:
        return replace(super().plan(base), can_coalesce=True)

    def coalesce(self, splits: Sequence[JsonObject], most: int) -> tuple[JsonObject, ...]:
        return tuple(splits[:most])


@wrong("fewer_splits_hold_the_same_records")
class CoalescesNothing(CoalescesToTheFirst):
    def coalesce(self, splits: Sequence[JsonObject], most: int) -> tuple[JsonObject, ...]:
        return tuple(splits)


@wrong("halves_together_hold_the_same_records")
class LosesTheMiddle(LinesSource):
    def halves(self, splits: Sequence[JsonObject]) -> tuple[Sequence[JsonObject], Sequence[JsonObject]] | None:
        return (splits[:1], splits[2:]) if len(splits) > 1 else None


@wrong("halves_together_hold_the_same_records")
class DividesForEver(LinesSource):
    def halves(self, splits: Sequence[JsonObject]) -> tuple[Sequence[JsonObject], Sequence[JsonObject]] | None:
        return splits, ()


# -- the end of the input


@wrong("a_source_without_an_end_never_finishes")
class FinishesWhenItHasCaughtUp(LinesSource):
    def plan(self, base: Document) -> Plan:
        plan = super().plan(base)
        return replace(plan, finished=not plan.splits)


@wrong("a_bounded_source_finishes_at_the_end_that_it_resolved")
class NeverFinishes(LinesSource):
    def plan(self, base: Document) -> Plan:
        return replace(super().plan(base), finished=False)


@wrong("a_bounded_source_finishes_at_the_end_that_it_resolved")
class MovesItsEnd(LinesSource):
    def plan(self, base: Document) -> Plan:
        ends = self._ends({}) if self._bounded else None
        return super().plan(replace(base, body={**base.body, "ends": ends}))


@wrong("a_bounded_source_finishes_at_the_end_that_it_resolved")
class StartsANewRunAtTheBeginning(LinesSource):
    def plan(self, base: Document) -> Plan:
        if self._new_ends is not None:
            base = replace(base, body={**base.body, "read": dict.fromkeys(base.body["read"], 0)})
        return super().plan(base)


# -- reports and questions


class _Skips(LinesSource):
    """Reads nothing of what it has found, once it was asked or had a report."""

    def open(self, context: Any) -> None:
        super().open(context)
        self._skips = False

    def plan(self, base: Document) -> Plan:
        plan = super().plan(base)
        return replace(plan, splits=()) if self._skips else plan


@wrong("reports_do_not_change_what_is_read")
class SkipsWhatHasFailed(_Skips):
    def observe_run(self, plan: Plan, seconds: float, *, failed: bool = False, held: float = 0.0) -> None:
        self._skips = failed


@wrong("reports_do_not_change_what_is_read")
class SkipsWhenItIsAsked(_Skips):
    def has_news(self) -> bool:
        self._skips = True
        return True


@wrong("splits_are_described_as_text")
class DescribesAList(LinesSource):
    def describe(self, splits: Sequence[JsonObject]) -> str:
        text: Any = list(splits)
        return text  # type: ignore[no-any-return]


@wrong("a_source_knows_its_role_and_its_input")
class ReadsEverything(LinesSource):
    def reads(self, resource: Resource) -> bool:
        return True


@wrong("a_source_knows_its_role_and_its_input")
class IsASink(LinesSource):
    def __init__(self, directory: str, *, bounded: bool = False) -> None:
        super().__init__(directory, bounded=bounded)
        self.participant = Participant(name=self.participant.name, role=Role.SINK, kind="lines")


# -- replays, and input that is gone


@wrong("a_replay_of_what_was_just_read_is_allowed_or_refused")
class TruncatesWhatItChecks(LinesSource):
    def check_replay(self, splits: Sequence[JsonObject], positions: Document) -> None:
        (self._directory / splits[0]["file"]).write_bytes(b"")


@wrong("a_replay_of_input_that_is_gone_is_refused")
class AllowsEveryReplay(LinesSource):
    def check_replay(self, splits: Sequence[JsonObject], positions: Document) -> None:
        pass


@wrong("input_that_is_gone_halts_the_job")
class RestoresAnything(LinesSource):
    def restore(self, positions: Document) -> None:
        pass
