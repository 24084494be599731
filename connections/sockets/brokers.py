"""The connections to the brokers of a cluster, and who leads what.

One thread owns a :class:`Brokers`: requests are sent and answered, and connections are lost, only in its calls. A
connection is opened by a thread that ends with it, so that a broker that cannot be reached delays no other one.
"""

import logging
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from onceward.common.backoff import Backoff
from onceward.connections.sockets.connection import Connection
from onceward.connections.sockets.encoding import GarbledError
from onceward.connections.sockets.metadata import Address, Leader, Metadata, MetadataRequest, Topic
from onceward.connections.sockets.opening import NotOpenedError, opened
from onceward.connections.sockets.requests import Request, UnspokenError
from onceward.connections.sockets.settings import ConnectionSettings

__all__ = ["Brokers"]

_REFRESH_S = (0.05, 1.0)
"""Pauses between requests for metadata: the first, and the longest."""
_CALM_S = 5.0
"""After this time without a request, the first pause counts again."""
_WAKE = b"\1"
_MOST_WAKES = 4096
_CLOSED = "the client is closed"
_SETTLED_S = 1.0
"""A connection that was not used for this time, and on which no answer was awaited for as long, was closed
because it was idle: that is no failure."""


@dataclass
class _Broker:
    """One address, with or without a connection."""

    address: Address
    backoff: Backoff
    connection: Connection | None = None
    opening: bool = False
    again: float = 0.0
    """When to open the next connection (monotonic)."""
    muted: float = 0.0
    """Until when a quota holds back what is sent to it (monotonic; KIP-219)."""
    failed: str = ""
    """Why the last attempt failed, as it was logged."""


class _Mailbox:
    """Where threads leave the connections that they opened; rings where :meth:`Brokers.serve` waits."""

    def __init__(self) -> None:
        self.bell, self._ringer = os.pipe()
        for end in (self.bell, self._ringer):
            os.set_blocking(end, False)
        self._lock = threading.Lock()
        self._closed = False
        self._results: deque[tuple[_Broker, Connection | str]] = deque()

    def leave(self, broker: _Broker, result: Connection | str) -> None:
        """``result``: a connection, or why there is none."""
        with self._lock:
            if not self._closed:
                self._results.append((broker, result))
                self._ring()
                return
        if isinstance(result, Connection):
            result.close(_CLOSED)

    def taken(self) -> Iterator[tuple[_Broker, Connection | str]]:
        while self._results:
            yield self._results.popleft()

    def ring(self) -> None:
        with self._lock:
            if not self._closed:
                self._ring()

    def silence(self) -> None:
        """Stop the bell."""
        with suppress(BlockingIOError):
            os.read(self.bell, _MOST_WAKES)

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self.bell)
                os.close(self._ringer)
        for _, result in self.taken():
            if isinstance(result, Connection):
                result.close(_CLOSED)

    def __del__(self) -> None:
        self.close()

    def _ring(self) -> None:
        with suppress(BlockingIOError):  # it is full of signals
            os.write(self._ringer, _WAKE)


class Brokers:
    """Connections of one client. Not thread-safe, except for :meth:`wake`."""

    def __init__(
        self, settings: ConnectionSettings, *, logger: logging.Logger, trouble: Callable[[str], None] = lambda why: None
    ) -> None:
        """``trouble``: gets what went wrong with a connection; it is opened again without the caller."""
        self._settings, self._logger, self._trouble = settings, logger, trouble
        self._brokers: dict[Address, _Broker] = {}
        self._nodes: dict[int, Address] = {}
        self._topics: dict[str, Topic] = {}
        self._learned: dict[str, float] = {}
        """When the last answer with a topic came (monotonic)."""
        self._wanted: set[str] = set()
        """Topics of which something is not known, or known to be old."""
        self.refreshes = 0
        """Number of answers with metadata."""
        self._asked = False
        self._refresh_at = 0.0
        self._pauses = Backoff(first=_REFRESH_S[0], longest=_REFRESH_S[1])
        self._asked_at = 0.0
        self._turn = 0
        self._mailbox = _Mailbox()
        self._woken = False
        self._poll = select.poll()
        self._poll.register(self._mailbox.bell, select.POLLIN)

    # -- who leads

    def topic(self, name: str) -> Topic | None:
        """Return what the last answer with the topic said of it; None before the first."""
        return self._topics.get(name)

    def leader(self, topic: str, partition: int) -> Leader | None:
        """Return the partition's leader, as last heard; None while none is known."""
        known = self._topics.get(topic)
        found = None if known is None else known.leaders.get(partition)
        return None if found is None or found.node < 0 else found

    def unheard(self, topics: Iterable[str], since: float) -> list[str]:
        """Return those topics of which no answer came after ``since`` (monotonic)."""
        return [topic for topic in topics if self._learned.get(topic, since) <= since]

    def refresh(self, topics: Iterable[str]) -> None:
        """Ask for metadata of these topics, soon and once; their leaders stay known until the answer."""
        self._wanted.update(topics)

    def _ask_for_metadata(self, now: float) -> None:
        if not self._wanted or self._asked or now < self._refresh_at:
            return
        wanted = frozenset(self._wanted)
        self._asked = True
        request = MetadataRequest(wanted, lambda found: self._learn(wanted, found), self._not_learned)
        if not self.send_any(request):
            self._asked = False
            return
        if now - self._asked_at > _CALM_S:
            self._pauses.reset()
        self._asked_at = now
        self._refresh_at = now + self._pauses.next()

    def send_any(self, request: Request) -> bool:
        """Send a request to some broker that is connected. False: none is; one is opened. Raises as :meth:`send`."""
        now = time.monotonic()
        broker = self._any_connected(now)
        if broker is None:
            self._open_any(now)
            return False
        self._sent(broker, request)
        return True

    def _any_connected(self, now: float) -> _Broker | None:
        able = [each for each in self._brokers.values() if self._usable(each, now) is not None]
        self._turn += 1
        # by turns: one that is cut off from the others knows less
        return able[self._turn % len(able)] if able else None

    def _open_any(self, now: float) -> None:
        """Open a connection to some broker, the known ones and the bootstrap servers by turns."""
        if any(each.opening for each in self._brokers.values()):
            return
        addresses = list(dict.fromkeys([*self._nodes.values(), *self._settings.bootstrap]))
        ready = [each for each in map(self._broker, addresses) if each.connection is None and now >= each.again]
        if ready:
            self._turn += 1
            self._open(ready[self._turn % len(ready)])

    def rebootstrap(self) -> None:
        """Call this while there is no progress, as often as needed: what the connected brokers know may be old."""
        self.refresh(self._topics)
        self._open_any(time.monotonic())

    def _learn(self, wanted: Collection[str], found: Metadata) -> None:
        self._asked = False
        self.refreshes += 1
        if not found.brokers:
            # All of them are fenced. The known addresses remain.
            self._trouble("the brokers that answer name no broker")
            return
        self._nodes = dict(found.brokers)
        self._topics.update(found.topics)
        self._learned.update(dict.fromkeys(found.topics, time.monotonic()))
        self._wanted.difference_update(wanted)

    def _not_learned(self, why: str) -> None:
        self._asked = False

    # -- requests

    def send(self, node: int, request: Request) -> bool:
        """Send a request to a broker. False: there is no connection that takes it now; one is opened soon, so try again
        after the next :meth:`serve`. Raises UnspokenError if the broker does not take it, and GarbledError."""
        now = time.monotonic()
        address = self._nodes.get(node)
        if address is None:  # fenced, or new
            self.refresh(self._topics)
            return False
        broker = self._broker(address)
        if self._usable(broker, now) is None:
            if broker.connection is None and not broker.opening and now >= broker.again:
                self._open(broker)
            return False
        self._sent(broker, request)
        return True

    def mute(self, node: int, seconds: float) -> None:
        """Send nothing to a broker for this time, as its quota demands."""
        address = self._nodes.get(node)
        if address is not None:
            broker = self._broker(address)
            broker.muted = max(broker.muted, time.monotonic() + seconds)

    def _sent(self, broker: _Broker, request: Request) -> None:
        assert broker.connection is not None
        try:
            broker.connection.send(request)
        except OSError as error:
            self._lose(broker, str(error))

    def _usable(self, broker: _Broker, now: float) -> Connection | None:
        connection = broker.connection
        if connection is None or now < broker.muted:
            return None
        if connection.expires is not None and now >= connection.expires:
            if not connection.in_flight:
                self._drop(broker, "its session ends")
            return None
        if not connection.in_flight and now - connection.used > _SETTLED_S:
            self._exchange(broker, connection)  # finds out whether the broker has closed it
        return broker.connection

    # -- input and output

    def serve(self, timeout: float) -> bool:
        """Send and receive until something happens, for ``timeout`` seconds at most: an answer, a lost or a new
        connection, or :meth:`wake`. Takes one answer of each connection at most. Return whether it was woken.

        Raises GarbledError.
        """
        now = time.monotonic()
        self._adopt(now)
        self._close_unneeded(now)
        self._ask_for_metadata(now)
        connected = {broker.connection.fileno(): broker for broker in self._brokers.values() if broker.connection}
        ready = {number for number, broker in connected.items() if broker.connection and broker.connection.decrypted}
        for number, broker in connected.items():
            writing = broker.connection is not None and broker.connection.unsent
            self._poll.register(number, select.POLLIN | (select.POLLOUT if writing else 0))
        try:
            wait = 0.0 if ready else max(0.0, min(timeout, self._until_due(now)))
            found = self._poll.poll(wait * 1000)
        finally:
            for number in connected:
                self._poll.unregister(number)
        for number, _ in found:
            if number == self._mailbox.bell:
                self._mailbox.silence()
            else:
                ready.add(number)
        waited = time.monotonic() - now
        for number, broker in connected.items():
            if (connection := broker.connection) is None:
                continue  # lost while the answer of another one was handled
            if number in ready:
                self._exchange(broker, connection)
            elif connection.in_flight:
                connection.silent += waited
                if connection.silent > self._settings.answer_s:
                    self._lose(broker, f"no answer for {self._settings.answer_s:g} s")
        self._adopt(time.monotonic())
        woken, self._woken = self._woken, False
        return woken

    def _exchange(self, broker: _Broker, connection: Connection) -> None:
        try:
            connection.flush()
            if connection.receive():
                broker.backoff.reset()
        except OSError as error:
            self._lose(broker, str(error))
        except GarbledError as error:
            self._lose(broker, str(error))
            raise

    def _until_due(self, now: float) -> float:
        """Return the seconds until something is to be done without any input."""
        dues = [broker.muted for broker in self._brokers.values() if broker.muted > now]
        dues += [broker.again for broker in self._brokers.values() if broker.again > now and broker.connection is None]
        if self._wanted and not self._asked and self._refresh_at > now:
            dues.append(self._refresh_at)
        return min(dues, default=now + 3600.0) - now

    def _close_unneeded(self, now: float) -> None:
        """Close connections that were idle, and those to bootstrap servers once a broker's own address has one."""
        own = {*self._nodes.values()}
        led = any(broker.connection for broker in self._brokers.values() if broker.address in own)
        for broker in self._brokers.values():
            if (connection := broker.connection) is None or connection.in_flight:
                continue
            if led and broker.address not in own and now - connection.used > _SETTLED_S:
                self._drop(broker, "it is no address of a broker")
            elif self._settings.idle_s is not None and now - connection.used > self._settings.idle_s:
                self._drop(broker, "it was idle")

    # -- connections

    def _broker(self, address: Address) -> _Broker:
        broker = self._brokers.get(address)
        if broker is None:
            first, longest = self._settings.pause_s, self._settings.longest_pause_s
            broker = self._brokers[address] = _Broker(address, Backoff(first=min(first, longest), longest=longest))
        return broker

    def _open(self, broker: _Broker) -> None:
        broker.opening = True
        work = threading.Thread(
            target=_open, args=(self._mailbox, broker, self._settings), daemon=True, name="kafka-open"
        )
        work.start()

    def _adopt(self, now: float) -> None:
        """Take over what threads have opened."""
        for broker, result in self._mailbox.taken():
            broker.opening = False
            if isinstance(result, str):
                self._failed(broker, result, now)
            else:
                broker.connection, broker.again, broker.failed = result, 0.0, ""

    def _failed(self, broker: _Broker, why: str, now: float) -> None:
        broker.again = now + broker.backoff.next()
        said = f"broker {broker.address}: {why}"
        if broker.failed != why:
            broker.failed = why
            self._logger.warning("%s. It is tried again.", said)
        self._trouble(said)
        self.refresh(self._topics)

    def _lose(self, broker: _Broker, why: str) -> None:
        connection, now = broker.connection, time.monotonic()
        idle = connection is not None and now - connection.used > _SETTLED_S and connection.silent <= _SETTLED_S
        self._drop(broker, why)
        if not idle:
            self._failed(broker, why, now)

    def _drop(self, broker: _Broker, why: str) -> None:
        connection, broker.connection = broker.connection, None
        if connection is not None:
            connection.close(f"broker {broker.address}: {why}")

    # -- from outside

    def wake(self) -> None:
        """End a wait in :meth:`serve`, from any thread; without one, the next ends at once."""
        self._woken = True
        self._mailbox.ring()

    def close(self) -> None:
        """Close all connections. :meth:`wake` may still be called."""
        self._mailbox.close()
        for broker in self._brokers.values():
            self._drop(broker, _CLOSED)


def _open(mailbox: _Mailbox, broker: _Broker, settings: ConnectionSettings) -> None:
    result: Connection | str = "an unexpected error, see the log"
    try:
        result = opened(broker.address, settings)
    except (NotOpenedError, UnspokenError) as error:
        result = str(error)
    finally:
        mailbox.leave(broker, result)
