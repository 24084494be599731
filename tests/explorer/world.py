"""What a small world consists of. All values are hashable: equal situations are equal states.

A world is five numbers: the coordinator, two drivers, the calls that are still in the network although nobody waits for
them, and Kafka. Each number stands for a value that is interned once, so that a step of a part is computed once and
looked up in all worlds that share it.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, NamedTuple, TypeVar

__all__ = ["WORLDS", "Bounds", "Call", "Driver", "Fault", "Kafka", "Phase", "Stream", "Table", "World"]

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How much may happen on one path."""

    checkpoints: int = 4
    """Ids: the first holds the start positions, the others a range of records each. A request of a person may take one
    more."""
    generations: int = 2
    crashes: int = 2
    """Of the coordinator or a driver."""
    messages: int = 2
    """Lost, doubled or overtaken."""
    store: int = 1
    """Writes that failed, or of which nobody knows."""
    declines: int = 1
    timeouts: int = 1
    idles: int = 0
    """Checkpoints for which there is nothing new."""
    requests: int = 0
    """Of a person: to the coordinator, or a signal to a driver."""
    losses: int = 0
    """Transactions that brokers abort by themselves after their pre-commit, or of which nobody can tell what became."""
    alone: bool = False
    """The coordinator can end transactions itself: it stands in for a driver that is gone."""


WORLDS = {
    "checkpoints": Bounds(),
    "orphans": Bounds(checkpoints=3, generations=3, crashes=2, messages=1, store=0, declines=0, timeouts=0, alone=True),
    "replays": Bounds(checkpoints=3, crashes=1, messages=0, store=0, declines=0, timeouts=0, losses=2),
    "requests": Bounds(checkpoints=3, crashes=1, messages=1, store=0, timeouts=1, idles=1, requests=1),
}
"""What is searched to the end: three checkpoints with records under all faults; two while the coordinator stands in for
drivers that are gone; two while brokers lose what is pre-committed and it is written again; and two while a person asks
for a savepoint, a stop with or without one, or the end at once, or signals a driver to stop."""


class Fault(IntEnum):
    """What costs something: an index into the budget."""

    CRASH = 0
    MESSAGE = 1
    STORE = 2
    DECLINE = 3
    TIMEOUT = 4
    IDLE = 5
    REQUEST = 6
    LOSS = 7


class Table(Generic[T]):
    """Values by small numbers."""

    def __init__(self) -> None:
        self._numbers: dict[T, int] = {}
        self.values: list[T] = []

    def number(self, value: T) -> int:
        number = self._numbers.get(value)
        if number is None:
            number = self._numbers[value] = len(self.values)
            self.values.append(value)
        return number

    def __len__(self) -> int:
        return len(self.values)


class Call(NamedTuple):
    """What a driver says to the coordinator, or what time does (``expire``, ``lease``, ``overdue``): one event of the
    core."""

    kind: str
    generation: int
    """For ``open`` the token of the driver."""
    checkpoint: int = 0
    who: str = ""
    base: int = 0
    """For ``open`` the generation that it takes over from."""
    at: int = 0
    """A source's position after the checkpoint."""
    data: bool = False
    """True when the sink has a committable."""
    unchanged: bool = False

    def __str__(self) -> str:
        if not self.checkpoint:
            return f"{self.kind} of {self.generation}"
        return f"{self.kind} {self.checkpoint} {self.who}".strip() + f" of generation {self.generation}"


class Phase(IntEnum):
    """Where a driver's main thread is."""

    ABSENT = 0
    """Not started yet, or its call to open the job has not arrived yet: nobody can tell the one from the other."""
    OPENING = 1
    """Its call has arrived once, it does not know."""
    SWEEPING = 2
    """Recovery: granted, aborts what nobody has decided for."""
    SETTLING = 3
    """Recovery: waits until what was completed is committed and reported."""
    IDLE = 4
    ACKNOWLEDGING_SOURCE = 5
    ACKNOWLEDGING_SINK = 6
    DECLINING = 7
    ABANDONING = 8
    """Knows the decision against a checkpoint, has not aborted its transaction yet."""
    FENCED = 9
    """The main thread is over, the settling thread may still end what it has begun."""
    LEAVING = 10
    """Says that it has stopped."""
    GONE = 11
    AMENDING = 13
    """Has written a lost transaction again, and says so."""
    STANDING_IN = 12
    """No driver: the coordinator's own threads, which end what a driver has left."""


class Stream(IntEnum):
    """The instruction stream as the driver sees it."""

    NONE = 0
    WANTED = 1
    """The call to watch is under way."""
    OPEN = 2


class Driver(NamedTuple):
    """One driver process, following docs/protocol.md and coordinator/pipeline/generation.py.

    The instructions that it has received and those still on their way are one set, ``trigger`` to ``over``: its threads
    look whenever they like, so an instruction on its way and one not yet looked at are the same.
    """

    phase: Phase = Phase.ABSENT
    token: int = 0
    generation: int = 0
    call: int = 0
    """The checkpoint of the call or the abandoning under way; of a driver that opens the job, the generation that it
    takes over from."""
    last_run: int = 0
    base: int = 0
    at: int = 0
    """The position of ``base``."""
    answered: int = 0
    """The checkpoint whose answers are recorded."""
    answer: int = 0
    """The position in these answers; that of the base when there was nothing new."""
    work: int = 0
    """Bits of checkpoints whose transactions only a decision may end: acknowledged or completed, and not settled."""
    settled: int = 0
    trigger: int = 0
    trigger_base: int = 0
    abort: int = 0
    complete: int = 0
    over: bool = False
    """Told to fail."""
    stopping: int = 0
    """1, or 2 when cancelled: leaves as soon as everything is settled, and runs nothing new."""
    stream: Stream = Stream.NONE
    report: int = 0
    """The checkpoint whose settlement is being reported."""
    report_of: int = 0
    """Its amendment then."""
    outcome: str = ""
    """Of the report, when it is not committed: lost, or in doubt."""
    handle: tuple[int, int, int] = (0, 0, 0)
    """Checkpoint, generation and amendment of a transaction that is not the first of its own generation."""
    lost: int = 0
    """The checkpoint that is proved lost, and waits to be written again."""
    replay: int = 0
    """Told to write it again,"""
    replay_of: int = 0
    """when this was its amendment."""


class Kafka(NamedTuple):
    """The output: transactions as (checkpoint, generation, first record, amendment), and what is committed."""

    open: tuple[tuple[int, int, int, int], ...] = ()
    committed: int = 0
    """Bits of checkpoints. What is neither open nor committed was never begun, or is aborted."""

    lost: tuple[tuple[int, int, int, int], ...] = ()
    """Aborted by the brokers themselves."""

    def without(self, gone: tuple[tuple[int, int, int, int], ...]) -> "Kafka":
        return self._replace(open=tuple(one for one in self.open if one not in gone))


class World(NamedTuple):
    """Numbers of the parts."""

    coordinator: int
    first: int
    second: int
    stray: int
    """Calls in the network that nobody waits for: doubled ones, and those of a dead driver."""
    kafka: int
    alone: int
    """The driver that the coordinator is in place of one."""
