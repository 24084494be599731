"""How requests get to the modelled brokers: what a simulated world puts in between, and the plain way."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from onceward.sinks.kafka.control import NoAnswer
from tests.simulation.kafka.cluster import Cluster

__all__ = ["Call", "DirectTransport", "Transport"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One request on its way. ``apply`` may be called never, once, or again later: then the request is lost, arrives,
    or arrives as a delayed duplicate."""

    cluster: Cluster
    node: int | None
    """None for any broker: the transport chooses."""
    request: Any

    def apply(self, now: float, node: int | None = None) -> Any:
        """Let the request arrive at `now`; the answer, or NoAnswer when the broker does not run. `node`: chosen for a
        request to any broker."""
        target = self.node if self.node is not None else node
        if target is None:
            raise ValueError("a request to any broker needs a broker")
        return self.cluster.handle(target, self.request, now)


class Transport(Protocol):
    """One process's way to the brokers, its clock and its waiting."""

    def now(self) -> float:
        """Virtual seconds."""

    def sleep(self, seconds: float) -> None: ...

    def send(self, calls: Sequence[Call]) -> list[Any]:
        """Send all at once; an answer or NoAnswer for each, in order, when the last is there or given up."""


class DirectTransport:
    """Every request arrives at once and is answered at once. Time moves by `sleep`, and by `cost_s` per sending."""

    def __init__(self, *, start: float = 0.0, cost_s: float = 0.0) -> None:
        self.clock = start
        self.cost_s = cost_s
        self.cut: Callable[[Call], bool] = lambda _call: False
        """Says which requests do not arrive."""
        self.deaf: Callable[[Call], bool] = lambda _call: False
        """Says which requests arrive, and their answer does not."""
        self.sent: list[Call] = []

    def now(self) -> float:
        return self.clock

    def sleep(self, seconds: float) -> None:
        self.clock += seconds

    def send(self, calls: Sequence[Call]) -> list[Any]:
        self.clock += self.cost_s
        return [self._one(call) for call in calls]

    def _one(self, call: Call) -> Any:
        self.sent.append(call)
        if self.cut(call):
            return NoAnswer(why="the request was lost")
        alive = call.cluster.alive
        answer = call.apply(self.clock, alive[0] if alive else call.cluster.settings.brokers[0])
        return NoAnswer(why="the answer was lost") if self.deaf(call) else answer
