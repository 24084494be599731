"""Connections between a driver and its staying tasks: in order and without loss, until one side is gone or silent."""

from collections import deque
from typing import Any

from onceward.executor.link import SECRET_BYTES, LinkLostError, Message, TaskCredentials
from tests.simulation.scheduler import Process
from tests.simulation.threads import Condition, scheduler

__all__ = [
    "Listener",
    "TaskNetwork",
    "VirtualLink",
    "accept",
    "break_links",
    "connect",
    "listen_on",
    "network",
    "new_credentials",
]

_LOST_S = 3.0
"""Silence after which a peer is lost; the real one would outlast most worlds."""
_LOOK_S = 0.5


class TaskNetwork:
    """The network between all drivers and tasks of a world."""

    def __init__(self) -> None:
        self.cut = False
        """Nothing arrives; what was sent arrives later."""
        self.listeners: dict[int, Listener] = {}


def network() -> TaskNetwork:
    """That of the current world."""
    found: TaskNetwork = scheduler().outside.local.setdefault(TaskNetwork, TaskNetwork())
    return found


class VirtualLink:
    """One side of a connection."""

    def __init__(self, process: Process, secret: bytes) -> None:
        self.secret = secret
        """What the task has proved itself with."""
        self.peer: VirtualLink | None = None
        self.over: str | None = None
        """Why nothing is sent or received any more."""
        self._process = process
        self._transit: deque[Message] = deque()
        """Sent to this side, and not here yet."""
        self._here: deque[Message] = deque()
        self._changed = Condition()
        self._arrives = 0.0
        self._silent_s = 0.0
        process.local.setdefault(VirtualLink, []).append(self)

    def dup(self) -> "_Handle":
        return _Handle()

    def send(self, message: Message) -> None:
        """Raises LinkLostError."""
        clock = scheduler()
        clock.require_alive()
        if self.over is not None:
            raise LinkLostError(self.over)
        peer = self.peer
        assert peer is not None, "connected"
        peer._transit.append(message)
        peer._arrives = max(peer._arrives + 1e-6, clock.now + 0.0002 + 0.001 * clock.random.random())
        clock.call(clock.outside, peer._arrives - clock.now, peer._carry)

    def receive(self) -> Message:
        """Raises LinkLostError."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._here) or self.over is not None)
            if self._here:
                return self._here.popleft()
        assert self.over is not None
        raise LinkLostError(self.over)

    def close(self) -> None:
        self.end("the connection is closed")
        self.leave()

    def end(self, why: str) -> None:
        """Nothing more is sent or received on this side."""
        if self.over is None:
            self.over = why
            self._changed.notify_all()

    def leave(self) -> None:
        """Let the peer notice that this side is closed, unless the network is cut: then it notices the silence."""
        clock = scheduler()
        if self.peer is not None and not network().cut:
            clock.call(clock.outside, 0.002 * clock.random.random() + 0.001, self.peer._left)

    def look(self) -> None:
        """Notice a peer that is silent for too long."""
        clock = scheduler()
        if self.over is not None or not self._process.alive:
            return
        peer = self.peer
        assert peer is not None, "connected"
        silent = network().cut or peer.over is not None or peer._process.paused or not peer._process.alive
        self._silent_s = self._silent_s + _LOOK_S if silent else 0.0
        if self._silent_s > _LOST_S and not self._process.paused:
            self.end(f"nothing was heard of the peer for {_LOST_S:.0f} s")
            return
        clock.call(clock.outside, _LOOK_S, self.look)

    def _carry(self) -> None:
        """Bring the next message, once the network is whole and the process runs."""
        clock = scheduler()
        if self.over is not None or not self._process.alive:
            return
        if network().cut or self._process.paused:
            clock.call(clock.outside, 0.05, self._carry)
            return
        self._here.append(self._transit.popleft())
        self._changed.notify_all()

    def _left(self) -> None:
        if self._process.alive and self._transit:  # what was sent before arrives before
            scheduler().call(scheduler().outside, 0.01, self._left)
        elif self._process.alive:
            self.end("the peer closed the connection")


class _Handle:
    """A further handle of a connection that has not proved itself. No world has strangers who connect."""

    def shutdown(self, _how: int) -> None:
        pass

    def close(self) -> None:
        pass


class Listener:
    """Where a driver accepts its tasks."""

    def __init__(self, process: Process) -> None:
        found = network()
        self._process = process
        self._port = len(found.listeners) + 1
        self._waiting: deque[VirtualLink] = deque()
        self._closed = False
        self._changed = Condition()
        found.listeners[self._port] = self

    def getsockname(self) -> tuple[str, int]:
        return "driver", self._port

    def accept(self) -> tuple[VirtualLink, None]:
        """Raises OSError when it is closed."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._waiting) or self._closed)
        if self._closed:
            raise OSError("closed")
        return self._waiting.popleft(), None

    def reached(self, task: VirtualLink) -> bool:
        """Let a task connect; return whether it was accepted."""
        if self._closed or not self._process.alive or network().cut:
            return False
        driver = VirtualLink(self._process, task.secret)
        driver.peer, task.peer = task, driver
        for side in (driver, task):
            side.look()
        self._waiting.append(driver)
        self._changed.notify_all()
        return True

    def shutdown(self, _how: int) -> None:
        pass

    def close(self) -> None:
        self._closed = True
        self._changed.notify_all()


def listen_on(_bind: tuple[str, int], *, backlog: int) -> Listener:
    process = scheduler().running
    assert process is not None
    return Listener(process)


def connect(address: tuple[str, int], credentials: TaskCredentials) -> VirtualLink:
    """Raises LinkLostError."""
    clock = scheduler()
    clock.sleep(0.002 * clock.random.random())
    process = clock.running
    assert process is not None
    link = VirtualLink(process, credentials.secret)
    if not network().listeners[address[1]].reached(link):
        raise LinkLostError("the driver cannot be reached")
    return link


def accept(peer: VirtualLink, _context: Any, secret: bytes) -> VirtualLink:
    """Raises LinkLostError."""
    if peer.secret != secret:
        peer.close()
        raise LinkLostError("a peer that is not a task of this group connected")
    return peer


def new_credentials() -> tuple[None, TaskCredentials]:
    secret = scheduler().random.getrandbits(8 * SECRET_BYTES).to_bytes(SECRET_BYTES, "big")
    return None, TaskCredentials(certificate="", secret=secret)


def break_links(process: Process) -> None:
    """Let the peers of ``process``, which died, notice its end."""
    for link in process.local.pop(VirtualLink, []):
        link.over = link.over or "the process has ended"
        link.leave()
