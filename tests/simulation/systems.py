"""What the world, its faults and its checkers need of a modelled system that sinks write to, of any kind."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from onceward.connectors.interfaces import Sink, SinkSession
from onceward.coordinator.service.systems import OpenSystem
from onceward.protocol.values import Committable, JsonObject
from tests.simulation.network import Link
from tests.simulation.scheduler import Process, Scheduler

if TYPE_CHECKING:
    from tests.simulation.checker import Checker

__all__ = ["CanBeCutOff", "ConnectedSink", "Handle", "Key", "ModelledSystem", "Peer", "Truth"]

Key: TypeAlias = tuple[str | int, ...]
"""Exactly one transaction."""


@dataclass(frozen=True, kw_only=True)
class Handle:
    """What a checker knows of a committable."""

    id: str
    """The name of its transaction."""
    key: Key
    slot: int
    checkpoint: int
    generation: int
    records: int
    inputs: Sequence[JsonObject]


class Truth(Protocol):
    """What is true on a system, whatever processes say."""

    def handle(self, committable: Committable) -> Handle: ...

    def committed(self, handle: Handle) -> bool: ...

    def ended(self, handle: Handle) -> bool:
        """Whether it is committed, or can never be."""

    def why_lost(self, handle: Handle) -> str | None:
        """What ended it besides our own requests; None when nothing did."""

    def not_shown(self) -> list[str]:
        """The ids of what is committed, and not visible yet."""


class Peer(Protocol):
    """What answers the requests of processes."""

    clock: Scheduler
    link: Link
    wires: Process

    def sent(self, process: Process, request: Any) -> None:
        """A process sends a request."""

    def arrived(self, who: Process, call: Any, sent: float) -> Any:
        """A request that was sent at ``sent`` has arrived. Returns the answer."""


class CanBeCutOff(ABC):
    """A system that processes reach by a link."""

    clock: Scheduler
    link: Link
    wires: Process

    @abstractmethod
    def note(self, who: str, what: str) -> None:
        """Write one line of the transcript."""

    def cut(self, seconds: float) -> None:
        """Cut the system off for a while."""
        self.note(self.wires.name, "cut off")
        self.link.cut = True
        self.clock.call(self.wires, seconds, self._mend)

    def _mend(self) -> None:
        self.note(self.wires.name, "connected")
        self.link.cut = False


class ConnectedSink(Sink, ABC):
    """A sink of a simulated driver."""

    session: SinkSession
    """Once it is connected."""


class ModelledSystem(Truth, Peer, Protocol):
    """A system in its world."""

    claims: int
    """Claims that were written."""
    claim_forgotten: bool
    """Whether a person must decide about the claim."""
    requests: int
    skipped: int
    """Ends of transactions that the system skipped."""
    log_requests: bool

    @property
    def name(self) -> str:
        """In files of systems."""

    @property
    def kind(self) -> str: ...

    @property
    def checker(self) -> "Checker":
        """The checker of what concerns the whole job, or the claim here."""

    @property
    def unsettled(self) -> frozenset[str]:
        """The ids of what is completed and not settled."""

    # -- what processes get

    def sinks(self, process: Process) -> Sequence[ConnectedSink]: ...

    def opener(self, process: Process) -> OpenSystem:
        """How a coordinator opens this system; the configuration is ignored."""

    # -- what must be true at certain moments

    def open_transactions(self) -> dict[str, str]:
        """What holds readers back or is left over."""

    def recovered(self, granted: float) -> None:
        """A generation granted at ``granted`` has recovered."""

    def replayed(self, lost: float) -> None:
        """What was recorded as lost at ``lost`` is about to be written again."""

    def abandoned(self, since: float) -> None:
        """All drivers have been gone since then, long enough for a coordinator to settle for them."""

    # -- faults

    def heal(self) -> None:
        """End all faults."""

    def cut(self, seconds: float) -> None:
        """Cut the system off for a while."""

    def move(self) -> None:
        """Let the system do what its clients must follow."""

    def fail(self, seconds: float) -> None:
        """Stop a part of the system for a while."""

    def hijack(self, ids: Collection[str] | None = None) -> None:
        """Let another program get in the way, of one of ``ids`` where given."""

    def tear(self, ids: Collection[str]) -> None:
        """Let an operator destroy a part of one of ``ids``."""

    def clean_up(self) -> None:
        """Let a tool remove or rewrite what it takes for unused."""
