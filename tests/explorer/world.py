"""The parts of a small world. All values are hashable: equal situations are equal states.

A world is ten numbers: the coordinator, two drivers, calls in the network that no thread waits for, Kafka and a table,
the coordinator's own threads in place of a driver, a coordinator that led before, with such threads, and who knows of
its successor, and an asynchronous copy of the store. Each number stands for a value that is interned once, so
that a step of a part is computed once and looked up in all worlds that share it.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from enum import IntEnum
from typing import Generic, NamedTuple, TypeVar

__all__ = [
    "IN_PLACE",
    "IN_PLACE_ON_COPY",
    "NO_CLAIM",
    "SINKS",
    "WORLDS",
    "Bounds",
    "Call",
    "Claim",
    "Driver",
    "Fault",
    "Flight",
    "Kafka",
    "Phase",
    "SmallWorld",
    "Stream",
    "Table",
    "TableState",
    "Transaction",
]

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How much may happen on one path."""

    checkpoints: int = 4
    """Ids: the first holds the start positions, each other one a range of records. A person's request may take one
    more."""
    generations: int = 2
    crashes: int = 2
    """Crashes of the coordinator or a driver."""
    messages: int = 2
    """Messages lost, duplicated or overtaken."""
    store: int = 1
    """Writes that failed, or whose result is unknown."""
    declines: int = 1
    timeouts: int = 1
    idles: int = 0
    """Checkpoints without new records."""
    requests: int = 0
    """Requests of a person: calls to the coordinator, or a signal to a driver."""
    losses: int = 0
    """Transactions that the brokers abort on their own after the pre-commit, or whose outcome cannot be proved."""
    takeovers: int = 0
    """Coordinators that stand still while another one takes the lead, perhaps on a copy of the store, and wake up
    afterwards."""
    promotions: int = 0
    """Asynchronous copies of the store that fall behind and are promoted later, at most one."""
    output_only: bool = False
    """Whether only the output is judged once a copy is promoted. A copy may lack that another driver has the job: then
    the former driver may abort, as the copy says, what the lost store has completed, and the records are written again,
    perhaps only after a person has started the driver again. That costs time, and no record."""
    alone: bool = False
    """Whether the coordinator can end transactions itself, in place of a driver that is gone."""
    staying: bool = False
    """Whether the driver's tasks stay: they write the next checkpoint before the last one is decided."""
    sinks: int = 1
    """Sinks of the job, at most two. Each has one committable for a checkpoint: the core does not know kinds."""
    table: int | None = None
    """Which of the two sinks writes to a table; None if both write to topics."""
    database: bool = False
    """Whether that is a table of a database: see ``tables.py``."""

    @property
    def claims(self) -> bool:
        """Whether the claim is modelled, as one for all systems."""
        return self.promotions > 0 or self.table is not None


WORLDS = {
    "checkpoints": Bounds(),
    "orphans": Bounds(checkpoints=3, generations=3, crashes=2, messages=1, store=0, declines=0, timeouts=0, alone=True),
    "replays": Bounds(checkpoints=3, crashes=1, messages=0, store=0, declines=0, timeouts=0, losses=2),
    "requests": Bounds(checkpoints=3, crashes=1, messages=1, store=0, timeouts=1, idles=1, requests=1),
    "staying": Bounds(crashes=1, messages=1, store=0, timeouts=0, losses=1, staying=True),
    "two sinks": Bounds(checkpoints=3, crashes=1, messages=1, store=0, timeouts=0, sinks=2),
    "replays of two sinks": Bounds(
        checkpoints=3, crashes=1, messages=0, store=0, declines=0, timeouts=0, losses=1, sinks=2
    ),
    "losses of two sinks": Bounds(
        checkpoints=3, crashes=0, messages=0, store=0, declines=0, timeouts=0, losses=2, sinks=2
    ),
    "a table after a topic": Bounds(
        checkpoints=2, crashes=1, messages=1, store=0, declines=0, timeouts=0, losses=1, sinks=2, table=1
    ),
    "a table before a topic": Bounds(
        checkpoints=3, crashes=1, messages=1, store=0, declines=0, timeouts=0, sinks=2, table=0
    ),
    "a database after a topic": Bounds(
        checkpoints=2, crashes=1, messages=1, store=0, declines=0, timeouts=0, losses=1, sinks=2, table=1, database=True
    ),
    "orphans of a topic and a table": Bounds(
        checkpoints=2,
        generations=3,
        crashes=1,
        messages=0,
        store=0,
        declines=0,
        timeouts=0,
        losses=1,
        alone=True,
        sinks=2,
        table=1,
    ),
    "leaders": Bounds(checkpoints=3, crashes=1, messages=1, store=0, declines=0, timeouts=0, takeovers=1),
    "leaders of orphans": Bounds(
        checkpoints=2, generations=3, crashes=1, messages=0, store=0, declines=0, timeouts=0, takeovers=1, alone=True
    ),
    "copies": Bounds(checkpoints=3, crashes=1, messages=0, store=0, declines=0, timeouts=0, promotions=1),
    "copies that lack an abort": Bounds(
        checkpoints=3, crashes=0, messages=0, store=0, declines=0, timeouts=1, promotions=1, output_only=True
    ),
    "one driver of a copy that lacks an abort": Bounds(
        checkpoints=3, generations=1, crashes=0, messages=0, store=0, declines=0, timeouts=1, promotions=1
    ),
    "copies of orphans": Bounds(
        checkpoints=2, generations=3, crashes=1, messages=0, store=0, declines=0, timeouts=0, promotions=1, alone=True
    ),
    "leaders of copies": Bounds(
        checkpoints=2, crashes=0, messages=0, store=0, declines=0, timeouts=0, takeovers=1, promotions=1
    ),
    "leaders of copies after a restart": Bounds(
        checkpoints=2,
        generations=1,
        crashes=1,
        messages=0,
        store=0,
        declines=0,
        timeouts=0,
        takeovers=1,
        promotions=1,
    ),
}
"""The worlds that are searched completely. Three checkpoints with records, under crashes, message and store faults,
declines and timeouts. Two while the coordinator acts in place of drivers that are gone. Two while brokers lose what is
pre-committed and it is written again. Two while a person asks for a savepoint, a stop with or without one, or an
immediate end, or signals a driver to stop. Three of staying tasks, which write ahead. Two of a job with two sinks; and
the same while brokers lose what one or both have pre-committed. Three of a job with a topic and a table, whose commits
may be held for any time, and one while the coordinator acts in place of its driver. Two while an outdated leader
continues to answer drivers. One while it continues to end transactions in place of a driver. Two while an older copy of
the store takes its place; and the same while the copy may lack an abort, also with a single driver. One while the
coordinators of both end transactions in place of a driver. One while an outdated leader, perhaps of the store that is
lost, continues to answer drivers; and the same for a single driver, where the copy may lack a restart of the
coordinator."""


class Fault(IntEnum):
    """Events that cost budget. The value is the index into the budget."""

    CRASH = 0
    MESSAGE = 1
    STORE = 2
    DECLINE = 3
    TIMEOUT = 4
    IDLE = 5
    REQUEST = 6
    LOSS = 7
    TAKEOVER = 8
    PROMOTION = 9


class Table(Generic[T]):
    """Numbers values in the order of their first use."""

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


class Transaction(NamedTuple):
    """A transaction at Kafka."""

    checkpoint: int
    """0 while staying tasks write it: they do not know the checkpoint until the cut."""
    generation: int
    first: int
    """Its first record."""
    amendment: int
    token: int = 0
    """The driver that wrote it, where copies of a store may grant a generation twice; 0 elsewhere."""
    sink: int = 0

    @property
    def bit(self) -> int:
        """Its place in sets of bits."""
        return bit_of(self.checkpoint, self.token, self.sink)


class Flight(NamedTuple):
    """A commit to a table that is under way: it has looked at the table's present state, and may arrive at any time."""

    transaction: Transaction
    fence: bool
    """It adds no files: it makes a commit of them impossible."""
    generation: int
    """That of the process that has sent it."""
    token: int


class TableState(NamedTuple):
    """What a table shows besides its records. See ``tables.py``."""

    receipt: int = 0
    """The number of the last commit."""
    fence: int = 0
    """The number of the last committable that was fenced."""
    flights: tuple[Flight, ...] = ()


_BITS = 256
"""Of one sink."""


def bit_of(checkpoint: int, token: int, sink: int) -> int:
    """The place of a driver's transaction in sets of bits: a driver writes one for each checkpoint and sink, unless it
    was lost."""
    return checkpoint + 8 * token + _BITS * sink


class Claim(NamedTuple):
    """Who owns the job, according to the systems that it writes to."""

    generation: int
    token: int
    completed: int

    def __str__(self) -> str:
        return f"claim {self.generation} of d{self.token} through {self.completed}"


NO_CLAIM = Claim(0, 0, 0)
IN_PLACE, IN_PLACE_ON_COPY = 6, 7
"""The tokens of a coordinator in place of a driver, and of one on a promoted copy of the store."""


SINKS = ("sink", "other")
"""The names of sinks, by number."""


class Call(NamedTuple):
    """What a driver sends to the coordinator, or what time does (``expire``, ``lease``, ``overdue``): one event of the
    core."""

    kind: str
    generation: int
    """For ``open``, the token of the driver."""
    checkpoint: int = 0
    who: str = ""
    base: int = 0
    """For ``open``, the generation that it takes over from."""
    at: int = 0
    """A source's position after the checkpoint."""
    data: bool = False
    """True when the sink has a committable."""
    unchanged: bool = False
    token: int = 0
    """The driver that calls, or the coordinator that takes the job, where copies of a store may grant a generation
    twice; 0 elsewhere."""
    seen: Claim = NO_CLAIM
    """For ``open`` and ``take``, the claim at Kafka."""
    knows: int = 0
    """For ``close``, the newest completed checkpoint that the driver knows."""
    sink: int = 0
    """For ``settle`` and ``amend``."""

    def __str__(self) -> str:
        if not self.checkpoint:
            return f"{self.kind} of {self.generation}"
        who = f"{self.who} {SINKS[self.sink] if self.sink else ''}".strip()
        return f"{self.kind} {self.checkpoint} {who}".strip() + f" of generation {self.generation}"


class Phase(IntEnum):
    """The state of a driver's main thread."""

    ABSENT = 0
    """Not started, or its call to open the job has not arrived: the two are indistinguishable. With a claim: it has
    not read the claim."""
    OPENING = 1
    """Its call has arrived once; the driver does not know. With a claim: it has read the claim, and calls."""
    SWEEPING = 2
    """Recovery: granted; aborts all undecided transactions."""
    SETTLING = 3
    """Recovery: waits until the completed checkpoint is committed and reported."""
    IDLE = 4
    ACKNOWLEDGING_SOURCE = 5
    ACKNOWLEDGING_SINK = 6
    ACKNOWLEDGING_OTHER = 16
    """The second sink of a job with two."""
    DECLINING = 7
    ABANDONING = 8
    """Knows that a checkpoint is aborted, but has not aborted its transaction yet."""
    FENCED = 9
    """The main thread has ended; the settling thread may still finish what it began."""
    LEAVING = 10
    """Reports that it has stopped."""
    GONE = 11
    AMENDING = 13
    """Has written a lost transaction again, and reports it."""
    STANDING_IN = 12
    """No driver: the coordinator's own threads, which end what a driver has left open."""
    CLAIMING = 14
    """Recovery: granted; has not taken the claim."""
    REFUSING = 15
    """Declines a checkpoint that is triggered although it came to nothing before."""


class Stream(IntEnum):
    """The instruction stream as the driver sees it."""

    NONE = 0
    WANTED = 1
    """The call to watch is in flight."""
    OPEN = 2


class Driver(NamedTuple):
    """One driver process, following docs/protocol.md and driver/generation.py.

    Received instructions and those in flight are one set, ``trigger`` to ``over``: its threads look at arbitrary times,
    so an instruction in flight and one not yet read are the same.
    """

    phase: Phase = Phase.ABSENT
    token: int = 0
    generation: int = 0
    call: int = 0
    """The checkpoint of the current call or abort. For a driver that opens the job, the generation that it takes over
    from."""
    last_run: int = 0
    base: int = 0
    at: int = 0
    """The position of ``base``."""
    answered: int = 0
    """The checkpoint whose answers are recorded."""
    answer: int = 0
    """The position in these answers; that of the base if there was nothing new."""
    work: int = 0
    """Bits of checkpoints whose transactions only a decision may end: acknowledged or completed, and not settled."""
    settled: int = 0
    trigger: int = 0
    trigger_base: int = 0
    abort: int = 0
    complete: int = 0
    over: bool = False
    """True when instructed to fail."""
    stopping: int = 0
    """1 for stop, 2 for cancel: it starts nothing new and leaves once everything is settled."""
    stream: Stream = Stream.NONE
    report: int = 0
    """The checkpoint whose settlement is being reported."""
    report_of: int = 0
    """The amendment of that report."""
    outcome: str = ""
    """The outcome in the report unless committed: lost, or in doubt."""
    handle: tuple[int, int, int, int] = (0, 0, 0, 0)
    """Checkpoint, generation, amendment and driver of a transaction that is not the first of its own generation."""
    lost: int = 0
    """The checkpoint that is proved lost and waits to be written again."""
    replay: int = 0
    """The checkpoint that it is instructed to write again."""
    replay_of: int = 0
    """The amendment at that instruction."""
    sinks: int = 1
    other: tuple[int, int, int, int] = (0, 0, 0, 0)
    """As ``handle``, of the second sink."""
    turn: int = 0
    """The sink that its settling thread commits or reports."""
    table: int | None = None
    """The sink that writes to a table."""
    database: bool = False
    waits: bool = False
    """Its settling thread waits for the answer to a commit to the table."""
    lost_by: int = 0
    """Bits of the sinks that have lost ``lost``."""
    doubt: int = 0
    """The checkpoint of which one of two sinks is in doubt."""
    replay_by: int = 0
    """The sink that is to write ``replay`` again, or does."""
    stays: bool = False
    """Its tasks stay."""
    ahead: int = 0
    """The first record of the transaction that they have begun for the next checkpoint; 0 for none."""
    claims: bool = False
    """Whether the claim is modelled."""
    seen: Claim = NO_CLAIM
    """The claim that it has read, until it has taken the job's claim."""
    claimed: int = 0
    """The checkpoint in the claim that it has written last."""
    newest: int = 0
    """The newest completed checkpoint that an instruction has named, received or in flight."""
    knows: int = 0
    """The same, of what it has certainly received."""
    halted: bool = False
    """An instruction has named an older one than it knows."""


class Kafka(NamedTuple):
    """The output, and the claim. Of a table, too: a transaction is what is staged there, and lost if it is deleted."""

    open: tuple[Transaction, ...] = ()
    committed: int = 0
    """Bits of transactions. What is neither open nor committed was never begun, or was aborted."""

    lost: tuple[Transaction, ...] = ()
    """Transactions that the brokers aborted on their own."""
    claim: Claim = NO_CLAIM
    table: TableState = TableState()

    def visible(self, sink: int = 0) -> int:
        """The number of records that readers of a sink's output see."""
        return (self.committed >> _BITS * sink & (1 << _BITS) - 1).bit_count()

    def without(self, gone: tuple[Transaction, ...]) -> "Kafka":
        return self._replace(open=tuple(one for one in self.open if one not in gone))


class SmallWorld(NamedTuple):
    """The numbers of the parts."""

    coordinator: int
    first: int
    second: int
    stray: int
    """Calls in the network that no thread waits for: duplicates, and calls of a dead driver."""
    kafka: int
    alone: int
    """The coordinator's own threads, as a driver."""
    former: int
    """A coordinator that led before and does not know that another one leads; -1 for none."""
    former_alone: int
    """Its own threads, as a driver."""
    aware: int
    """Bits of the drivers that the new leader has answered: they ignore the former one."""
    copy: int
    """The coordinator that would start from a copy of the store that gets no more writes; -1 for none."""
