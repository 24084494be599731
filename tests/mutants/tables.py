"""Bugs of the sink of tables in what it commits, proves, sweeps, claims and writes again."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from onceward.connections.claim_files import ClaimFiles
from onceward.connections.storage import Storage
from onceward.connectors.interfaces import Origin
from onceward.protocol.values import Committable, JobName
from onceward.sinks.lake.control import committing, staged
from onceward.sinks.lake.control.system import LakeSystem
from onceward.sinks.lake.control.tables import CommitRefusedError, LakeTable
from onceward.sinks.lake.control.transactions import Place, next_number, place_of
from onceward.sinks.lake.driver.session import LakeSession
from onceward.sinks.lake.executor import writer
from tests.explorer.world import Bounds
from tests.mutants.breaking import always, within, wrapped
from tests.mutants.hunts import Exploration
from tests.mutants.mutant import Mutant
from tests.mutants.seed_hunts import SeedHunt, clear
from tests.simulation.checker import Invariant
from tests.simulation.executors import TaskFaults
from tests.simulation.lake_files import LoadedVersion
from tests.simulation.network import LinkFaults
from tests.support import oracle

__all__ = ["TABLES"]

KILLS = SeedHunt(
    name="a table while processes are killed",
    seeds=30,
    faults=clear(second_sink="table", kill_points=0.03, driver_kills=3, driver_pauses=2, wishes=0, cancels=0),
)
LATE = SeedHunt(
    name="a table whose answers are late or lost",
    seeds=20,
    faults=clear(
        second_sink="table",
        table=LinkFaults(loss=0.05, duplicate=0.3, slow=0.05),
        fault_time=20.0,
        interval=0.0,
        wishes=0,
        cancels=0,
    ),
)
SLEEPS = SeedHunt(
    name="a table while drivers sleep before they commit, and others write to it",
    seeds=20,
    faults=clear(
        second_sink="table",
        driver_pauses=3,
        takeovers=5,
        moves=1,
        fault_time=20.0,
        interval=0.0,
        wishes=0,
        cancels=0,
    ),
)
TASKS = SeedHunt(
    name="a table while tasks sleep before they make a file",
    seeds=20,
    faults=clear(
        second_sink="table", tasks=TaskFaults(declared_lost=0.2, stopped=0.1, slow=0.05), fault_time=15.0, interval=0.0
    ),
)
VACUUMS = SeedHunt(
    name="a table while a vacuum deletes what waits for its commit",
    seeds=30,
    faults=clear(second_sink="table", robberies=0.4, torn=0.3, driver_kills=1, interval=0.0, wishes=0, cancels=0),
)
SMALL = Exploration(
    name="a small world with a topic and a table",
    bounds=Bounds(checkpoints=2, crashes=0, messages=0, store=0, declines=0, timeouts=0, losses=1, sinks=2, table=1),
)


def _by_sequence(place: Callable[[int, int | None], Place], number: int, found: int | None) -> Place:
    return place(number >> 20 << 20, None if found is None else found >> 20 << 20)


def _passed_is_committed(place: Callable[[int, int | None], Place], number: int, found: int | None) -> Place:
    return Place.COMMITTED if place(number, found) is Place.PASSED else place(number, found)


def _commits_again(self: LakeTable, *arguments: Any, **named: Any) -> str:
    assert isinstance(self, LoadedVersion)
    try:
        return self.commit(*arguments, **named)
    except CommitRefusedError:
        self._version = self._lake.version
        return self.commit(*arguments, **named)


def _fences_nothing(write: Callable[..., str], change: committing.Change) -> str:
    return "nothing" if change.gone else write(change)


def _deletes_all(
    delete: Callable[..., None],
    storage: Storage,
    folder: str,
    job: str,
    names: Collection[str],
    _in_table: Callable[[], Collection[str]],
) -> None:
    delete(storage, folder, job, names, lambda: ())


def _of_all_but_one(origin: Callable[..., Origin], self: LakeSession, committable: Committable) -> Origin:
    found = origin(self, committable)
    return replace(found, inputs=found.inputs[:-1])


def _keeps_nothing(self: LakeSystem, job: JobName, *, keep: Collection[Committable] = ()) -> Sequence[str]:
    return self.leftovers(job)


TABLES = (
    Mutant(
        name="a commit to a table does not look whether it is there already",
        hurts="a commit whose answer was lost is made twice",
        breaks=within(committing._look, committing._proved, always(None)),
        hunt=SLEEPS,
        caught_by=(Invariant.I2,),
    ),
    Mutant(
        name="a refused commit to a table is repeated on the newest version without a look",
        hurts="of two processes that commit the same checkpoint both land",
        breaks=within(committing._write, LakeTable.commit, _commits_again),
        hunt=SLEEPS,
        caught_by=(Invariant.I2,),
    ),
    Mutant(
        name="a checkpoint whose files are gone is called lost without a fence",
        hurts="a commit that looked before may land after its records are written again",
        breaks=wrapped(committing._write, _fences_nothing),
        hunt=VACUUMS,
        caught_by=(Invariant.I13,),
    ),
    Mutant(
        name="a commit to a table does not look whether its files are there",
        hurts="no reader can read the table",
        breaks=within(committing._look, staged.missing, always(())),
        hunt=VACUUMS,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="a sweep of a table spares nothing that is decided",
        hurts="the completed checkpoint has lost its files",
        breaks=within(LakeSystem.sweep, LakeSystem.leftovers, _keeps_nothing),
        hunt=KILLS,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="a sweep of a table leaves what tasks have staged",
        hurts="the files of each failed attempt stay in the directory",
        breaks=within(LakeSystem.sweep, LakeSystem._delete, always(None)),
        hunt=KILLS,
        caught_by=(Invariant.I9,),
    ),
    Mutant(
        name="a task does not notice that it was swept before it made its file",
        hurts="its file stays in the directory, and no sweep finds it",
        breaks=within(writer._ParquetFile.close, Storage.size, always(0)),
        hunt=TASKS,
        caught_by=(Invariant.I9,),
    ),
    Mutant(
        name="a sweep of a table deletes files that the table has",
        hurts="a note that comes late is enough to lose committed records",
        breaks=wrapped(staged.delete_files, _deletes_all),
        hunt=LATE,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="the claim on a table is not renewed before a commit",
        hurts="a store that lacks the checkpoint may write its records again",
        breaks=within(LakeSystem.renew_claim, ClaimFiles.renew, always(None)),
        hunt=KILLS,
        caught_by=(Invariant.I2,),
    ),
    Mutant(
        name="a table's lost checkpoint is written again without one of its splits",
        hurts="the records of that split are lost",
        breaks=wrapped(LakeSession.origin, _of_all_but_one),
        hunt=VACUUMS,
        caught_by=(Invariant.I1, Invariant.WHOLE),
    ),
    Mutant(
        name="a number in a table proves a commit whatever its token",
        hurts="a process that slept calls what was lost committed, and its records are missing",
        breaks=wrapped(place_of, _by_sequence),
        hunt=SMALL,
        caught_by=(oracle.Invariant.SETTLED,),
    ),
    Mutant(
        name="a later commit to a table proves all before it",
        hurts="what was fenced, or never came in, counts as committed",
        breaks=wrapped(place_of, _passed_is_committed),
        hunt=SMALL,
        caught_by=(oracle.Invariant.SETTLED,),
    ),
    Mutant(
        name="a committable that takes another one's place has its number",
        hurts="the fence of the lost one ends the one that was written again, too",
        breaks=wrapped(next_number, lambda number, *taken: number(*taken) >> 20 << 20),
        hunt=VACUUMS,
        caught_by=(Invariant.I2,),
    ),
)
