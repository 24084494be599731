"""A settler whose brokers and coordinator answer as a test sets, and whose thread works on demand."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from onceward.common.errors import OncewardError
from onceward.driver.journal import Journal
from onceward.driver.outputs import OpenOutput, Outputs
from onceward.driver.runtime import Threads
from onceward.driver.settler import Settler
from onceward.protocol.answers import Answer, Verdict
from onceward.protocol.values import (
    Author,
    CheckpointId,
    Claim,
    Committable,
    Document,
    Generation,
    JobName,
    OnLost,
    Outcome,
    ParticipantName,
    Settlement,
)
from tests.support.documents import committable
from tests.support.running_job import SINK


class Queue(Threads):
    """A runtime whose workers hold each call until the test releases it."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.now = 0.0
        self._closed = False

    def monotonic(self) -> float:
        return self.now

    def worker(self, name: str) -> "Queue":
        return self

    def submit(self, call: Callable[[], None]) -> None:
        if self._closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        self.calls.append(call)

    def close(self, *, wait: bool) -> None:
        self._closed = True
        self.calls.clear()

    def work(self) -> None:
        """Make every waiting call."""
        while self.calls:
            self.calls.pop(0)()


class _Journal(Journal):
    def __init__(self, events: list[tuple[str, dict[str, Any]]]) -> None:
        super().__init__("orders")
        self._events = events

    def log(self, event: str, **facts: Any) -> None:
        self._events.append((event, facts))


class Driver:
    """Session, source, sink and committer of a settler. A test sets what the brokers prove of each slot."""

    grant = SimpleNamespace(store_id="store", completed=None)
    job, generation, driver = JobName("orders"), Generation(1), "driver"

    def __init__(self, on_lost: OnLost = OnLost.REPLAY) -> None:
        self.participant = replace(SINK, on_lost=on_lost)
        self.proofs: dict[int, Outcome] = {}
        """Outcomes by slot. Other slots get no answer before the driver leaves."""
        self.verdict = Verdict.ACCEPTED
        self.asked: list[list[int]] = []
        """Slots of each commit."""
        self.reported: list[dict[int, Outcome]] = []
        self.evidence: list[str] = []
        """Evidence in the latest report."""
        self.claimed: list[Claim] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        """Journal events, which programs that watch the job receive."""
        self.shown: list[tuple[int, list[int]]] = []
        """Settled checkpoints that the sink was notified of, with their slots."""
        self.mirrored: list[Document] = []
        self.said: list[str] = []
        self.failures: list[OncewardError] = []
        self.queue = Queue()
        same: Any = self
        self.settler = Settler(
            session=same,
            source=same,
            outputs=Outputs(self.job, [OpenOutput(sink=same, system=same)]),
            journal=_Journal(self.events),
            on_settled=lambda checkpoint, _records: self.said.append(f"settled {checkpoint}"),
            on_lost=lambda: self.said.append("lost"),
            on_error=self.failures.append,
            runtime=self.queue,
        )

    def complete(self, checkpoint: CheckpointId, amendment: int = 0) -> None:
        """Complete a checkpoint as the coordinator's instruction and the settler's thread do."""
        self.settler.complete(checkpoint, amendment)
        self.queue.work()

    def take_claim(self, job: JobName, claim: Claim, seen: Collection[Claim]) -> None: ...

    def prepare_claim(self, claim: Claim) -> None:
        self.said.append(f"claim {claim.completed} prepared")

    def renew_claim(self, claim: Claim, *, give_up: Callable[[], bool], **_: Any) -> bool:
        self.claimed.append(claim)
        return True

    def commit(
        self, author: Author, committables: Sequence[Committable], *, give_up: Callable[[], bool], **_: Any
    ) -> Sequence[Settlement]:
        self.asked.append([one.slot for one in committables])
        return [
            Settlement(slot=one.slot, outcome=self.proofs[one.slot], evidence="seen")
            for one in reversed(committables)
            if one.slot in self.proofs
        ]

    def describe(self, committable: Committable) -> str:
        return f"the records of slot {committable.slot}"

    def settle(
        self,
        checkpoint: CheckpointId,
        participant: ParticipantName,
        settlements: Sequence[Settlement],
        *,
        amendment: int = 0,
    ) -> Answer:
        self.reported.append({one.slot: one.outcome for one in settlements})
        self.evidence = [one.evidence for one in settlements]
        return Answer(verdict=self.verdict, detail="so it is")

    def on_settled(self, settled: CheckpointId | Document, committables: Sequence[Committable] = ()) -> None:
        """The sink's, with a checkpoint and its committables, or the source's, with positions."""
        if not isinstance(settled, Document):
            self.shown.append((settled, [one.slot for one in committables]))

    def mirror(self, positions: Document) -> None:
        self.mirrored.append(positions)


def slots(*numbers: int, again: bool = False) -> tuple[Committable, ...]:
    return tuple(committable(number, again=again) for number in numbers)


def held(*numbers: int, again: bool = False) -> dict[ParticipantName, tuple[Committable, ...]]:
    return {SINK.name: slots(*numbers, again=again)}
