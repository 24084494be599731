"""The modelled table in its world: its versions, its directory, what befalls it, and a reader.

What the reader knows of files and claims is read from their bytes, without the code that wrote them.
"""

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from onceward.coordinator.service.systems import OpenSystem
from onceward.protocol.values import MAX_ID, Committable
from tests.simulation.checker import Checker, Invariant
from tests.simulation.fault_profile import FaultProfile
from tests.simulation.lake_files import Asked, LoadedVersion, Version
from tests.simulation.lake_sink import TableSink, TableSystem
from tests.simulation.network import SLOWEST_S, Link
from tests.simulation.scheduler import Process, Scheduler, Task
from tests.simulation.systems import CanBeCutOff, Handle
from tests.support.table_documents import TableFile, TableFiles

__all__ = ["Lake"]

_DATA = "data/"
_STAGED = "_onceward/staged/"
_CLAIM = re.compile(r"_onceward/claims/orders\.claim\.(\d+)")


class Lake(CanBeCutOff):
    """A table, and every process's access to it. Its faults are those of the profile, as far as they have a
    counterpart: other programs append and rewrite, and a vacuum deletes files that no version has."""

    kind = "table"
    claim_forgotten = False
    skipped = 0
    log_requests = False

    def __init__(
        self,
        clock: Scheduler,
        faults: FaultProfile,
        checkers: Sequence[Checker],
        note: Callable[[str, str], None],
        step: Callable[[str], None],
    ) -> None:
        """``step`` is called before each request of a process, which may die there."""
        self.clock = clock
        self.checkers = {checker.sink: checker for checker in checkers}
        self.link = Link(clock.random, faults.kafka if faults.table is None else faults.table)
        self.wires = Process("table", "world")
        self.step = step
        self._note = note
        self._on_lost = faults.on_lost
        self.vote_bytes = 40 if faults.limit % 2 else 0
        """Above 0, slots with a record or two vote with them."""
        self.version = Version(number=0, transactions={}, files=frozenset())
        self._files: dict[str, bytes] = {}
        self._created: dict[str, float] = {}
        self._unnoted: dict[str, Process] = {}
        """Files whose note was swept before they were made, and by whom they were."""
        self._claim = 0
        """The number of the newest claim."""
        self.claims = 0
        self.requests = 0
        self.refused = 0
        """Commits that were refused because the table had changed."""
        self.late = 0
        """Requests that came after their process had given up."""
        self._names: dict[str, frozenset[str]] = {}
        """By id: the files of a committable."""
        self._committed: set[str] = set()
        self._fenced: set[str] = set()
        self._shown: set[str] = set()
        """Names of files that a version has, or had."""
        self._removed: set[str] = set()
        """Names of files that were deleted by another program."""
        self._attempts: dict[Task, LoadedVersion] = {}
        """What each thread has loaded last, until it has committed."""
        self._flying: dict[str, tuple[float, frozenset[str]]] = {}
        """Commits that may still land: until when, and their files' names."""
        self._swept = (0, 0.0)
        """The newest generation whose sweep is complete, and when that began."""
        self._rivals = 0.2 if faults.moves or faults.hijacks else 0.0
        if faults.transaction_timeout < 60.0:
            self._retention = faults.transaction_timeout
            self._vacuum_every(faults.timeout_scan)
        for checker in checkers:
            checker.truth = self

    def note(self, who: str, what: str) -> None:
        self._note(who, what)

    @property
    def name(self) -> str:
        return self.checker.system

    @property
    def checker(self) -> Checker:
        return next(iter(self.checkers.values()))

    @property
    def unsettled(self) -> frozenset[str]:
        return frozenset().union(*(checker.unsettled for checker in self.checkers.values()))

    @property
    def fences(self) -> int:
        return len(self._fenced)

    # -- what processes get

    def sinks(self, process: Process) -> list[TableSink]:
        return [TableSink(self, process, name, self._on_lost) for name in self.checkers]

    def opener(self, process: Process) -> OpenSystem:
        def opens(_: object, *, generation: Callable[[], int | None] = lambda: None) -> TableSystem:
            return TableSystem(self, process, generation=generation)

        return opens

    # -- what is true

    def handle(self, committable: Committable) -> Handle:
        made = TableFiles.of(committable)
        identifier = _id(made.transaction)
        self._names[identifier] = frozenset(made.names)
        return Handle(
            id=identifier,
            key=(identifier,),
            slot=made.slot,
            checkpoint=made.checkpoint,
            generation=made.generation,
            records=made.records,
            inputs=made.inputs,
        )

    def committed(self, handle: Handle) -> bool:
        return handle.id in self._committed

    def ended(self, handle: Handle) -> bool:
        return handle.id in self._committed or handle.id in self._fenced

    def why_lost(self, handle: Handle) -> str | None:
        return "vacuum" if self._names[handle.id] & self._removed else None

    def not_shown(self) -> list[str]:
        return []

    def open_transactions(self) -> dict[str, str]:
        """What is staged, and was there before the last sweep."""
        return dict.fromkeys(self._staged(self._swept[1]), "staged")

    def recovered(self, granted: float) -> None:
        """Nothing that was staged before is left, except what was completed and not settled then."""
        self._require_swept(granted, "a recovery", frozenset().union(*self._names.values()))

    def replayed(self, lost: float) -> None:
        """What a completed checkpoint has lost holds nothing back: its fence ends it."""

    def abandoned(self, since: float) -> None:
        """What is completed is visible, or proved lost."""
        for identifier in self.unsettled - self._committed - self._fenced:
            self.checker.fail(Invariant.ORPHANS, f"{identifier} is neither committed nor fenced")

    def swept(self, begun: float, generation: int, kept: Collection[str]) -> None:
        """A process of ``generation`` has swept since ``begun``, and kept the files of these names."""
        kept = {*kept, *(path for path in self._staged(begun) if _generation(path) > generation)}
        self._require_swept(begun, "a sweep", kept)
        self._swept = max(self._swept, (generation, begun))

    def _require_swept(self, before: float, what: str, kept: Collection[str]) -> None:
        for path in self._staged(before):
            if path not in kept and _name(path) not in kept:
                self.checker.fail(Invariant.I9, f"{path} is left after {what}")

    def _staged(self, before: float) -> Iterator[str]:
        """Files that no version has had, and notes, that are older than ``before``. A process that was swept before it
        made its file deletes it after closing it, when it misses its note. If it dies before, no sweep finds the file.
        """
        for path, created in self._created.items():
            data = path.startswith(_DATA) and _name(path) not in self._shown
            data = data and (path not in self._unnoted or (self._unnoted[path].alive and bool(self._files[path])))
            if created < before and (data or path.startswith(_STAGED)):
                yield path

    # -- the directory

    def content(self, path: str) -> bytes | None:
        return self._files.get(path)

    def names(self, folder: str) -> set[str]:
        return {_name(path) for path in self._files if path.rpartition("/")[0] == folder}

    def create(self, path: str, content: bytes) -> bool:
        if path in self._files:
            return False
        self.write(path, content)
        if (match := _CLAIM.fullmatch(path)) and int(match[1]) > self._claim:
            self._claim = int(match[1])
            self.claims += 1
            claim = json.loads(content)
            outdated = claim["generation"] < self.checker.generations
            if not (self.checker.claimed == MAX_ID and outdated):  # a deposed driver restores no protection
                self.checker.claim(int(claim["completed"]), str(claim["holder"]))
            self.note("table", f"is claimed by {content.decode().strip()}")
        return True

    def write(self, path: str, content: bytes) -> None:
        self._files[path] = content
        self._created.setdefault(path, self.clock.now)

    def make(self, path: str, process: Process) -> None:
        """A process begins to write a file."""
        self.write(path, b"")
        if f"{_STAGED}orders/{_name(path)}" not in self._files:
            self._unnoted[path] = process

    def fill(self, path: str, content: bytes) -> None:
        if path in self._files:
            self._files[path] = content

    def deletes(self, path: str) -> None:
        """A process asks for it: check that no reader and no completed checkpoint needs the file."""
        if not path.startswith(_DATA):
            return
        if _name(path) in self.version.files:
            self.checker.fail(Invariant.I1, f"{path} is deleted, and the table has it")
        for identifier in self.unsettled - self._committed - self._fenced:
            if _name(path) in self._names[identifier]:
                self.checker.fences(identifier, f"cut short: {path} is deleted")

    def delete(self, path: str) -> None:
        if path.startswith(_DATA) and _name(path) in self.version.files:
            self.checker.fail(Invariant.I1, f"{path} is deleted, and the table has it")
        self._files.pop(path, None)
        self._created.pop(path, None)

    # -- versions

    def look(self, loaded: LoadedVersion) -> None:
        """A thread has loaded the table."""
        assert self.clock.task is not None
        self._attempts[self.clock.task] = loaded

    def commits(self, transaction: int, files: Sequence[TableFile], sink: str) -> None:
        """A process asks for a commit, or for a fence if there are no files: it must be right already then."""
        identifier, checker = _id(transaction), self.checkers[sink]
        if files:
            checker.ends((identifier,), commit=True)
            self._flying[identifier] = self.clock.now + SLOWEST_S, frozenset(one.name for one in files)
        elif all(self._files.get(_DATA + name) for name in self._names.get(identifier, ())):
            checker.fences(identifier)
        assert self.clock.task is not None
        self._attempts.pop(self.clock.task, None)

    def land(self, before: Version, made: Version, transaction: int, files: Sequence[TableFile]) -> bool:
        """A commit on the version ``before`` has arrived. Returns False if that is not the newest."""
        identifier = _id(transaction)
        self._flying.pop(identifier, None)
        if self._rivals and self.clock.random.random() < self._rivals:
            self.move()
        if self.version is not before:
            self.refused += 1
            return False
        gone = [one.path for one in files if len(self._files.get(one.path, b"")) != one.size]
        if gone:
            self.checker.fail(Invariant.I1, f"version {made.number} has {gone}, which are gone")
            return True
        self.version = made
        self.note("table", f"version {made.number} {'commits' if files else 'fences'} {identifier}")
        if files:
            self._committed.add(identifier)
            self._show(files)
        else:
            self._fenced.add(identifier)
        return True

    def _show(self, files: Iterable[TableFile]) -> None:
        """A reader sees the next version."""
        values: list[bytes] = []
        for one in files:
            self._shown.add(one.name)
            values += pq.read_table(pa.BufferReader(self._files[one.path]), use_threads=False)["value"].to_pylist()
        self.note("reader table", f"shows {b' '.join(sorted(values)).decode()}")
        self.checker.version(values)

    def _change(self, files: frozenset[str]) -> None:
        """Let another program make a version without new records of ours."""
        now = self.version
        self.version = Version(number=now.number + 1, transactions=now.transactions, files=files)

    # -- requests and time

    def sent(self, process: Process, request: str) -> None:
        """What must be right when it is sent is checked by the caller."""

    def arrived(self, who: Process, call: Asked, sent: float) -> Any:
        self.requests += 1
        answer = call.act()
        if self.log_requests:
            self.note("table", f"{who.name} {call.request}")
        return answer

    def _vacuum_every(self, seconds: float) -> None:
        """Delete files that no version has and that are older than the retention, from time to time."""

        def again() -> None:
            self._vacuum(path for path, at in self._created.items() if at < self.clock.now - self._retention)
            self._vacuum_every(seconds)

        self.clock.call(self.wires, seconds, again)

    def _vacuum(self, paths: Iterable[str]) -> None:
        """Delete files that no version has. Spares those that a commit has looked at and may still land with: a vacuum
        in that moment, far shorter than any retention, makes the table unreadable, whatever we do."""
        spared = set(self.version.files)
        for until, names in self._flying.values():
            spared |= names if self.clock.now < until else frozenset()
        for task, loaded in self._attempts.items():
            spared |= loaded.looked if task.process.alive else set()
        for path in sorted(paths):
            if path.startswith(_DATA) and _name(path) not in spared:
                self.note("table", f"a vacuum deletes {path}")
                self._removed.add(_name(path))
                self.delete(path)

    # -- faults

    def heal(self) -> None:
        self.link.heal()
        self._rivals = 0.0

    def move(self) -> None:
        """Let another program append."""
        self._change(self.version.files | {f"foreign-{self.version.number}"})
        self.note("table", f"another program appends version {self.version.number}")

    def fail(self, seconds: float) -> None:
        self.cut(seconds)

    def hijack(self, ids: Collection[str] | None = None) -> None:
        """Let a vacuum delete the files of ``ids``, or another program append."""
        if ids is None:
            self.move()
        for identifier in ids or ():
            self._vacuum(_DATA + name for name in self._names[identifier] if _DATA + name in self._files)

    def tear(self, ids: Collection[str]) -> None:
        """Let one file of ``ids`` be deleted."""
        names = sorted(name for identifier in ids for name in self._names[identifier] if _DATA + name in self._files)
        if names:
            self._vacuum([_DATA + self.clock.random.choice(names)])

    def clean_up(self) -> None:
        """Let another program rewrite all files into one, or delete the claims."""
        if self.clock.random.random() < 0.5:
            self._delete_claims()
            return
        self._change(frozenset({f"rewritten-{self.version.number}"}))
        self.note("table", f"another program rewrites all files in version {self.version.number}")

    def _delete_claims(self) -> None:
        for path in [one for one in self._files if _CLAIM.fullmatch(one)]:
            self.delete(path)
        self._claim = 0
        self.checker.claimed = MAX_ID  # without the claim there is no protection until it is written again
        self.note("table", "another program deletes the claims")


def _id(transaction: int) -> str:
    return f"files-{transaction}"


def _name(path: str) -> str:
    return path.rpartition("/")[2]


def _generation(path: str) -> int:
    """Of what wrote the file, by the form of its name."""
    return int(_name(path).split(".")[2])
