"""How requests reach the modelled brokers: the protocol that simulated worlds implement, and the direct way."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from onceward.sinks.kafka.control.control_plane import NoAnswer
from tests.support.kafka_model.cluster import Cluster

__all__ = ["Call", "DirectTransport", "Transport"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """One request on its way. ``apply`` may be called never (lost), once (arrived), or again later (delayed
    duplicate)."""

    cluster: Cluster
    node: int | None
    """None for any broker; the transport chooses."""
    request: Any

    def apply(self, now: float, node: int | None = None) -> Any:
        """Let the request arrive at `now`. Returns the answer, or NoAnswer when the broker does not run. `node`: the
        choice for a request to any broker."""
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
        """Send all at once. Returns an answer or NoAnswer for each, in order, once the last has arrived or was given
        up."""


class DirectTransport:
    """Requests and answers arrive at once. Time advances by `sleep`, and by `cost_s` per send."""

    def __init__(self, *, start: float = 0.0, cost_s: float = 0.0) -> None:
        self.clock = start
        self.cost_s = cost_s
        self.cut: Callable[[Call], bool] = lambda _call: False
        """Selects the requests that do not arrive."""
        self.deaf: Callable[[Call], bool] = lambda _call: False
        """Selects the requests whose answer does not arrive."""
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
