"""A sink as its drivers and another process use it, without Spark: all that the promises call of a sink is here."""

import itertools
import json
import pickle
import secrets
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import timedelta
from types import TracebackType

import pyarrow as pa

from onceward.common.errors import OncewardError
from onceward.connectors.interfaces import JobContext, Severity, Sink, writer_options
from onceward.connectors.slots import CheckingSlot, OpenSlot, SlotContext
from onceward.connectors.tasks import CheckpointTask, Vote
from onceward.dev.promises.checking import broken, eventually
from onceward.driver.origins import slot_origins
from onceward.protocol.committing import System
from onceward.protocol.values import (
    Author,
    CheckpointId,
    Claim,
    Committable,
    Generation,
    JobName,
    Outcome,
    ParticipantName,
)

__all__ = ["Driver", "Jobs", "SinkCase", "Slot", "from_json", "outcomes_of", "refuses", "values_as_batch"]


def values_as_batch(values: Sequence[bytes]) -> pa.RecordBatch:
    """A batch with the one column ``value``."""
    return pa.RecordBatch.from_arrays([pa.array(values, pa.binary())], ["value"])


@dataclass(frozen=True, kw_only=True)
class SinkCase:
    """A sink to check, on a system in which nothing has been written yet. Each promise needs a case of its own."""

    sink: Callable[[str], Sink]
    """Makes a sink with this name, as a program would: again and again, each on the same place of the same system."""
    system: Callable[[], System]
    """Opens the system as a coordinator does, which has no sink."""
    visible: Callable[[], Iterable[bytes]]
    """Returns the values that readers see now, in any order."""
    batch: Callable[[Sequence[bytes]], pa.RecordBatch] = values_as_batch
    """Makes a batch of these values, as :meth:`SinkSession.prepare` hands it to the writer."""
    refused: bytes | None = None
    """A value that the sink cannot write, if its slots find these beforehand (:class:`CheckingSlot`)."""
    together: bool = False
    """A checkpoint has one committable, of all its slots, so that it becomes visible as a whole."""
    within: float = 30.0
    """Seconds after which readers see what was committed."""


class Jobs:
    """The processes of a case: drivers of one or several jobs, and others. Closed together."""

    def __init__(self, case: SinkCase) -> None:
        self.case = case
        self.job = JobName(f"promise-{secrets.token_hex(4)}")
        self._attempts = itertools.count(1)
        self._opened = ExitStack()

    def __enter__(self) -> "Jobs":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened.close()

    def driver(self, *, job: str | None = None, generation: int = 1, name: str = "sink") -> "Driver":
        """Open a sink as the driver of a new generation does."""
        driver = Driver(self.case, JobName(job or self.job), generation, self.case.sink(name), self._attempts)
        self._opened.callback(driver.close)
        return driver

    def system(self) -> System:
        """Open what another process has that knows the system, and no sink."""
        system = self.case.system()
        self._opened.callback(system.close)
        return system

    def shows(self, *values: bytes, when: str) -> None:
        """Require that readers see exactly ``values``; what is missing may take a moment."""
        wanted = sorted(values)
        found = eventually(self._visible, wanted, self.case.within if wanted else 0.0)
        if found != wanted:
            broken(f"Readers see {found} instead of {wanted}: {when}.")

    def _visible(self) -> list[bytes]:
        return sorted(self.case.visible())


class Driver:
    """A sink in the hands of one driver."""

    def __init__(
        self, case: SinkCase, job: JobName, generation: int, sink: Sink, attempts: "itertools.count[int]"
    ) -> None:
        self.job, self.generation = job, generation
        self.sink = sink.connect(JobContext(job=job, checkpoint_timeout=timedelta(minutes=2)))
        self._case, self._attempts = case, attempts
        errors = [found for found in self.sink.preflight() if found.severity is Severity.ERROR]
        if errors:
            broken(f"The preflight refuses this case: {'; '.join(f'{one.subject}: {one.message}' for one in errors)}")
        self.sink.begin_generation(Generation(generation))
        self.system = self.sink.system()
        self._open = True

    @property
    def name(self) -> ParticipantName:
        return self.sink.participant.name

    @property
    def author(self) -> Author:
        """The author of what this generation and all before it have written."""
        return Author(job=self.job, participant=self.name, generations=range(1, self.generation + 1))

    def close(self) -> None:
        if self._open:
            self._open = False
            self.sink.close()

    # -- as its tasks

    def open_slot(self, slot: int = 0, *, checkpoint: int = 1) -> "Slot":
        """Open a slot with a copy of the writer, as a task does."""
        task = CheckpointTask(
            job=self.job,
            generation=self.generation,
            checkpoint=checkpoint,
            splits=(),
            columns=(),
            sinks={self.name: writer_options(self.sink)},
        )
        context = SlotContext(
            task=CheckpointTask.from_json(task.to_json()), sink=self.name, slot=slot, attempt=next(self._attempts)
        )
        writer = pickle.loads(pickle.dumps(self.sink.write()))
        return Slot(writer.open(context), context, self._case.batch)

    def write(self, *values: bytes, slot: int = 0, checkpoint: int = 1) -> Vote:
        """Write a slot to its end, in batches of one record."""
        opened = self.open_slot(slot, checkpoint=checkpoint)
        for value in values:
            opened.write(value)
        return opened.finish()

    # -- as the loop of a job

    def pre_commit(self, *votes: Vote, checkpoint: int = 1) -> tuple[Committable, ...]:
        origins = slot_origins([[{"slot": vote.slot}] for vote in votes], str)
        return self.sink.pre_commit(CheckpointId(checkpoint), votes, origins, leftovers=True).committables

    def prepared(self, *slots: Sequence[bytes], checkpoint: int = 1) -> tuple[Committable, ...]:
        """Write a slot of each list of values, and pre-commit them."""
        votes = [self.write(*values, slot=slot, checkpoint=checkpoint) for slot, values in enumerate(slots)]
        return self.pre_commit(*votes, checkpoint=checkpoint)

    def sweep(self, *keep: Committable) -> Collection[str]:
        return self.system.sweep(self.job, keep=keep)

    def leftovers(self, *keep: Committable) -> Collection[str]:
        return self.system.leftovers(self.job, keep=keep)

    def commits(self, committables: Sequence[Committable], *, by: System | None = None) -> None:
        """Commit, and require that it is proved."""
        outcomes = outcomes_of(by or self.system, self.author, committables)
        if outcomes != [Outcome.COMMITTED] * len(committables):
            broken(f"A commit of slots {[one.slot for one in committables]} has the outcomes {outcomes}.")

    def aborts(self, committables: Sequence[Committable], *, by: System | None = None) -> None:
        (by or self.system).abort(self.author, committables)

    # -- its claim

    def claim(self, completed: int = 0) -> Claim:
        """What this driver writes as its claim."""
        return Claim(
            store_id=f"store of {self.job}",
            generation=Generation(self.generation),
            completed=CheckpointId(completed),
            holder=f"driver {self.generation}",
        )

    def takes(self, claim: Claim, *, seen: Claim | None) -> None:
        """Claim the job in place of ``seen``. Raises ClaimChangedError."""
        self.system.take_claim(self.job, claim, () if seen is None else (seen,))

    def renews(self, claim: Claim) -> None:
        """Replace the claim that this driver wrote last. Raises FencedError."""
        self.system.renew_claim(claim)

    def finds(self, claim: Claim | None, *, by: System | None = None, job: str | None = None) -> None:
        """Require that ``claim`` is read."""
        reader = by or self.system
        found = eventually(lambda: reader.read_claim(JobName(job or self.job)), claim, self._case.within)
        if found != claim:
            broken(f"The claim that is read is {found}, and {claim} was written last.")


class Slot:
    """A slot that a task writes."""

    def __init__(
        self, opened: OpenSlot, context: SlotContext, batch: Callable[[Sequence[bytes]], pa.RecordBatch]
    ) -> None:
        self._opened, self._context, self._batch = opened, context, batch
        self._written: list[bytes] = []

    def write(self, *values: bytes) -> None:
        self._opened.write(self._batch(values))
        self._written += values

    def unfit(self, *values: bytes) -> list[int]:
        """Return which of ``values`` the slot finds that it cannot write; none for a slot that does not look."""
        if not isinstance(self._opened, CheckingSlot):
            return []
        return sorted(one.row for one in self._opened.unfit(self._batch(values)))

    def finish(self) -> Vote:
        """Finish, and return the vote as the driver gets it: from JSON."""
        vote = self._opened.finish()
        if (vote.slot, vote.attempt) != (self._context.slot, self._context.attempt):
            broken(
                f"Attempt {self._context.attempt} of slot {self._context.slot} voted as attempt {vote.attempt} of slot "
                f"{vote.slot}: the driver would take it for another one."
            )
        if vote.records != len(self._written):
            broken(f"A slot of {len(self._written)} records voted for {vote.records}.")
        return Vote.from_json(vote.to_json())

    def abandon(self) -> None:
        self._opened.abandon()


def outcomes_of(system: System, author: Author, committables: Sequence[Committable]) -> list[Outcome]:
    """Commit, and return the outcome of each committable. Each must have one settlement, with its evidence."""
    settled = system.commit(author, committables)
    if sorted(one.slot for one in settled) != sorted(one.slot for one in committables):
        broken(
            f"A commit of slots {[one.slot for one in committables]} settled slots {[one.slot for one in settled]}: a "
            "checkpoint settles when each of its slots has one outcome."
        )
    if not all(isinstance(one.evidence, str) and one.evidence for one in settled):
        broken(f"A settlement has no evidence, which is what a person reads before ruling on a slot: {settled}.")
    found = {one.slot: one.outcome for one in settled}
    return [found[one.slot] for one in committables]


def from_json(committables: Iterable[Committable]) -> tuple[Committable, ...]:
    """The committables as another process reads them from a store."""
    return tuple(
        replace(one, document=replace(one.document, body=json.loads(json.dumps(one.document.body))))
        for one in committables
    )


def refuses(call: Callable[[], object], error: type[OncewardError], what: str) -> None:
    """Require that ``call`` raises ``error``."""
    try:
        call()
    except error:
        return
    broken(f"{what} was not refused with {error.__name__}.")
