"""Who coordinates a consumer group or a transactional id, and requests that go there."""

import time
from abc import abstractmethod
from enum import IntEnum
from typing import Final, NamedTuple

from confluent_kafka import KafkaError

from onceward.common.backoff import Backoff
from onceward.connections.sockets.brokers import Brokers
from onceward.connections.sockets.encoding import Decoder, Encoder
from onceward.connections.sockets.requests import Api, Content, Request

__all__ = ["Coordinated", "CoordinatorOf", "Coordinators", "Kind"]

_PAUSE_S: Final = (0.002, 0.2)
"""Before a request is sent again: the first pause, and the longest."""
_MOST_KNOWN: Final = 1_000
_LATER: Final = frozenset(
    {
        14,  # COORDINATOR_LOAD_IN_PROGRESS
        51,  # CONCURRENT_TRANSACTIONS: the markers of the id's last transaction are being written
    }
)
_MOVED: Final = frozenset(
    {
        13,  # NETWORK_EXCEPTION
        15,  # COORDINATOR_NOT_AVAILABLE
        16,  # NOT_COORDINATOR
    }
)


class Kind(IntEnum):
    GROUP = 0
    TRANSACTION = 1


class CoordinatorOf(NamedTuple):
    """What a broker coordinates."""

    kind: Kind
    name: str
    """The group or the transactional id."""


class Coordinated(Request):
    """A request to a coordinator. It is sent until an answer says that it worked, or that it never will.

    ``None`` in ``error``: it is on its way, or will be sent again.
    """

    repeats_lost = True
    """Send it again when the answer is lost."""

    def __init__(self, to: CoordinatorOf) -> None:
        self.to = to
        self.code = 0
        """Of the last answer."""
        self.error: KafkaError | None = None
        self.done = False
        """Whether it worked, or has an error."""
        self.sent = False
        """Whether an answer is awaited."""
        self.again = 0.0
        """When to send it (monotonic)."""
        self._pauses = Backoff(first=_PAUSE_S[0], longest=_PAUSE_S[1])
        self.moved = False
        """Whether another broker coordinates."""
        self.given_up = False
        """It is not sent again."""
        self.after: Coordinated | None = None
        """It is sent when this one has worked."""

    @abstractmethod
    def read(self, version: int, answer: Decoder) -> int:
        """Return the error code of the answer; 0: it worked."""

    def later(self, code: int) -> bool:
        """Return whether a request that was answered with this code may work later, besides the codes that all
        coordinators have."""
        return False

    def answered(self, version: int, answer: Decoder) -> None:
        self.code = code = self.read(version, answer)
        self.sent = False
        if code == 0:
            self.done = True
        elif code in _MOVED or code in _LATER or self.later(code):
            self.moved = code in _MOVED
            self.again = time.monotonic() + self._pauses.next()
        else:
            self.fail(KafkaError(code))

    def lost(self, why: str) -> None:
        self.sent = False
        if self.repeats_lost:
            self.moved = True
            self.again = time.monotonic() + self._pauses.next()
        else:
            self.fail(KafkaError(KafkaError._TRANSPORT, f"the answer to {self.api.name} is lost: {why}"))

    def fail(self, error: KafkaError) -> None:
        self.error, self.done = error, True


class Coordinators:
    """Sends requests to coordinators, and looks for those. As :class:`Brokers`, one thread owns it."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        self._known: dict[CoordinatorOf, int] = {}
        """Nodes."""
        self._waiting: list[Coordinated] = []
        self._finding: dict[CoordinatorOf, _FindCoordinator] = {}

    @property
    def idle(self) -> bool:
        """Whether no answer is awaited."""
        return not any(each.sent for each in (*self._waiting, *self._finding.values()))

    def find(self, to: CoordinatorOf) -> None:
        """Look for a coordinator, also before it is needed."""
        if to not in self._known and to not in self._finding:
            finding = self._finding[to] = _FindCoordinator(to)
            self._find(finding, time.monotonic())

    def ask(self, request: Coordinated, *, after: Coordinated | None = None) -> None:
        """Send a request when its coordinator is known, and ``after`` has worked."""
        request.after = after
        self._waiting.append(request)
        self.send()

    def give_up(self) -> None:
        """Send nothing of what waits, now or again."""
        for each in self._waiting:
            each.given_up = True

    def send(self) -> None:
        """Send what is due. Call it before each :meth:`Brokers.serve`. Raises UnspokenError and GarbledError."""
        now = time.monotonic()
        for finding in [*self._finding.values()]:
            self._find(finding, now)
        self._waiting = [each for each in self._waiting if not each.done and (each.sent or not each.given_up)]
        for request in self._waiting:
            if request.moved:
                self._known.pop(request.to, None)
                request.moved = False
            before = request.after
            if before is not None and before.error is not None:
                request.fail(before.error)
            if request.sent or request.done or now < request.again or (before is not None and not before.done):
                continue
            node = self._known.get(request.to)
            if node is None:
                self.find(request.to)
            else:
                request.sent = True
                request.sent = self._brokers.send(node, request) and request.sent

    def until_due(self) -> float:
        """Return the seconds until something has to be sent again."""
        now = time.monotonic()
        waiting = (*self._waiting, *self._finding.values())
        return min((each.again - now for each in waiting if not each.sent and each.again > now), default=3600.0)

    def _find(self, finding: "_FindCoordinator", now: float) -> None:
        if finding.done:
            del self._finding[finding.to]
            if finding.error is None:
                if len(self._known) >= _MOST_KNOWN:
                    self._known.clear()
                self._known[finding.to] = finding.node
                return
            for request in self._waiting:
                if request.to == finding.to and not request.sent:
                    request.fail(finding.error)
        elif not finding.sent and now >= finding.again:
            finding.sent = True
            finding.sent = self._brokers.send_any(finding) and finding.sent


class _FindCoordinator(Coordinated):
    """FindCoordinator; any broker answers."""

    api = Api.FIND_COORDINATOR
    node = -1

    def encode(self, version: int, *, flexible: bool) -> Content:
        out = Encoder(flexible=flexible)
        out.text(self.to.name)
        out.put("b", self.to.kind)
        out.no_tags()
        return [out.data]

    def read(self, version: int, answer: Decoder) -> int:
        answer.take("i")  # throttle
        code = answer.number("h")
        answer.text()
        self.node = answer.number("i")
        return code
