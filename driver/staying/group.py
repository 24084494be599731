"""One group of staying tasks, on the driver: their Spark job, and a connection to each.

Threads: one accepts connections, one per task listens, one waits for the Spark job. They record what happens and call
``changed``; the driver's main thread decides.
"""

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from onceward.common.errors import ConfigurationError
from onceward.common.printable import logger
from onceward.connectors.tasks import Postponed
from onceward.executor.functions import unusable_in
from onceward.executor.link import Link, LinkLostError, Message, accept
from onceward.protocol.values import JsonObject

__all__ = ["Report", "TaskFailedError", "TaskGroup"]

_log = logger("onceward.pipeline")

_MOST_UNPROVED = 64
"""Connections that have not proved to be tasks. A further one replaces the oldest: a task proves itself at once."""
_ACCEPT_PAUSE_S = 0.2
_END_S = 10.0
"""Time for the tasks to abort their open transactions and end."""
_JOB_S = 10.0


class TaskFailedError(Exception):
    """A staying task failed; the message is its traceback, as Spark would show it."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """What one task reports of a checkpoint."""

    ballot: str
    """The JSON of its :class:`Ballot`."""
    reached: JsonObject
    open: float
    """Seconds by which its transactions are older than the order to cut, at most."""
    at: float
    """When it came, in monotonic seconds."""


@dataclass(kw_only=True)
class _Seat:
    """What is known of one slot's task."""

    link: Link
    marks: frozenset[str] | None = None
    news: bool = False
    passed: bool = False
    sent: dict[int, Report] = field(default_factory=dict)
    """With the votes to come."""
    reports: dict[int, Report] = field(default_factory=dict)
    over: bool = False
    """It has ended in order: its transaction is aborted, and it begins none."""


class TaskGroup:
    """Tasks that stay until :meth:`end`. All methods may be called by any thread."""

    def __init__(
        self,
        slots: int,
        context: ssl.SSLContext,
        secret: bytes,
        *,
        bind: tuple[str, int],
        host: str,
        begin: Message,
        job: Callable[[tuple[str, int]], None],
        cancel: Callable[[], None],
        changed: Callable[[], None],
    ) -> None:
        """Listen on ``bind``, which executors reach as ``host``, and start the job. Port 0 = a free one. Raises
        ConfigurationError if it cannot listen there.

        ``context`` and ``secret``: for :func:`accept`. ``begin``: the first message to each task. ``job``: runs the
        Spark job of ``slots`` tasks that connect to an address; returns when they have ended. ``cancel``: kills it.
        ``changed``: called whenever something happened.
        """
        self._slots, self._begin = slots, begin
        self._context, self._secret = context, secret
        self._cancel, self._changed = cancel, changed
        self._lock = threading.Condition()
        self._seats: dict[int, _Seat] = {}
        self._failure: Exception | None = None
        self._lost: str | None = None
        self._ending = False
        self._job_over = False
        self._unproved: dict[socket.socket, None] = {}
        """A second handle of each connection that has not proved itself, the oldest first."""
        self._closed = False
        self._listening = _listen_on(bind, backlog=max(16, slots))
        self._address = host, int(self._listening.getsockname()[1])
        threading.Thread(target=self._accept, name="onceward-tasks-accept", daemon=True).start()
        self._job_thread = threading.Thread(target=self._run, args=(job,), name="onceward-tasks-job", daemon=True)
        self._job_thread.start()

    # -- what the main thread asks

    @property
    def ready(self) -> bool:
        """All tasks have begun."""
        with self._lock:
            return len(self._marked()) == self._slots

    @property
    def begun(self) -> int:
        with self._lock:
            return len(self._marked())

    @property
    def marks(self) -> frozenset[str]:
        """The marks of the transactions of these tasks."""
        with self._lock:
            return frozenset(mark for seat in self._seats.values() for mark in seat.marks or () if mark)

    @property
    def news(self) -> bool:
        """A task has records for the next checkpoint, or has nothing left to read."""
        with self._lock:
            return any(seat.news for seat in self._seats.values())

    @property
    def passed(self) -> bool:
        """A task has passed input without records since the last cut."""
        with self._lock:
            return any(seat.passed for seat in self._seats.values())

    @property
    def broken(self) -> bool:
        with self._lock:
            return self._failure is not None or self._lost is not None or self._job_over

    def reports(self, checkpoint: int) -> Sequence[Report] | None:
        """Return the reports of all slots, in order; None until all are there."""
        return self._of_all(lambda seat: seat.reports.get(checkpoint))

    def sent(self, checkpoint: int) -> Sequence[Report] | None:
        """Return the reports of all slots, in order, once all have sent their records; None before. The brokers have
        not confirmed all records yet."""
        return self._of_all(lambda seat: seat.reports.get(checkpoint) or seat.sent.get(checkpoint))

    def _of_all(self, of: Callable[[_Seat], Report | None]) -> Sequence[Report] | None:
        with self._lock:
            found = [
                report
                for slot in range(self._slots)
                if (seat := self._seats.get(slot)) is not None and (report := of(seat)) is not None
            ]
            return found if len(found) == self._slots else None

    def cut(self, checkpoint: int, sinks: Mapping[str, JsonObject], allowances: Sequence[Sequence[int]] = ()) -> None:
        """Order all tasks to cut. ``sinks``: options for the writers of each sink, for the next checkpoint.
        ``allowances``: for the source's readers of it, by slot."""
        with self._lock:
            seats = dict(self._seats)
            for seat in seats.values():
                seat.news = seat.passed = False
                seat.sent.clear()
                seat.reports.clear()
        for slot, seat in seats.items():
            allowed = {"allowed": allowances[slot]} if allowances else {}
            with contextlib.suppress(LinkLostError):  # its listener notices
                seat.link.send({"cut": checkpoint, "sinks": sinks, "at": time.time(), **allowed})

    def failure(self) -> Exception:
        """Return what broke the group."""
        with self._lock:
            if self._failure is not None:
                return self._failure
            return TaskFailedError(self._lost or "The Spark job of the staying tasks ended by itself.")

    def end(self) -> bool:
        """Order all tasks to end and wait for it; then nothing of the group runs any more, as far as this driver can
        know. Return whether all tasks have ended in order: each has aborted its open transaction."""
        with self._lock:
            self._ending = True
            seats = list(self._seats.values())
        for seat in seats:
            with contextlib.suppress(LinkLostError):
                seat.link.send({"end": True})
        with self._lock:
            # not the end of the job: Spark may report it before the last word of a task is heard
            self._lock.wait_for(lambda: self._lost is not None or self._all_over(), _END_S)
            in_order = self._lost is None and self._all_over()
        self._job_thread.join(_JOB_S if in_order and self._failure is None else 0)
        if self._job_thread.is_alive():
            self._cancel()
            self._job_thread.join(_JOB_S)
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # or the thread that accepts would keep the port
        with contextlib.suppress(OSError):
            self._listening.close()
        for seat in seats:
            seat.link.close()
        return in_order

    # -- threads

    def _marked(self) -> Mapping[int, _Seat]:
        return {slot: seat for slot, seat in self._seats.items() if seat.marks is not None}

    def _all_over(self) -> bool:
        """All tasks that came are over, and no other can come."""
        return all(seat.over for seat in self._seats.values())

    def _run(self, job: Callable[[tuple[str, int]], None]) -> None:
        error: Exception | None = None
        try:
            job(self._address)
        except Exception as failed:  # noqa: BLE001 - the main thread decides
            error = failed
        with self._lock:
            self._job_over = True
            if error is not None and self._failure is None and not self._ending:
                self._failure = error
            self._lock.notify_all()
        self._changed()

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._listening.accept()
                handle = peer.dup()
            except OSError as error:
                with self._lock:
                    if self._closed:
                        return
                    _log.warning("the staying tasks' port takes no connection now: %s", error)
                    if self._lock.wait_for(lambda: self._closed, _ACCEPT_PAUSE_S):  # perhaps out of descriptors
                        return
                continue
            with self._lock:
                if len(self._unproved) >= _MOST_UNPROVED:
                    oldest = next(iter(self._unproved))
                    del self._unproved[oldest]
                    with contextlib.suppress(OSError):
                        oldest.shutdown(socket.SHUT_RDWR)  # wakes its thread
                self._unproved[handle] = None
            threading.Thread(target=self._serve, args=(peer, handle), name="onceward-task", daemon=True).start()

    def _serve(self, peer: socket.socket, handle: socket.socket) -> None:
        try:
            link = accept(peer, self._context, self._secret)
            self._proved(handle)
            hello = link.receive()
        except LinkLostError as error:
            _log.warning("a connection to the staying tasks' port was refused: %s", error)
            return
        finally:
            self._proved(handle)
        slot, seat = int(hello["hello"]), _Seat(link=link)
        with self._lock:
            wanted = not self._ending and slot not in self._seats
            if wanted:
                self._seats[slot] = seat
            elif not self._ending and self._lost is None and self._failure is None:
                # Spark runs a task again: its first attempt may still write, so the whole group must begin again
                self._lost = f"Spark has started the staying task of slot {slot} a second time."
                self._lock.notify_all()
        if wanted:
            self._listen(slot, seat)
        else:
            link.close()
            self._changed()

    def _proved(self, handle: socket.socket) -> None:
        """The connection has proved itself, or is over."""
        with self._lock:
            self._unproved.pop(handle, None)
            handle.close()

    def _listen(self, slot: int, seat: _Seat) -> None:
        try:
            seat.link.send(self._begin)
            while not seat.over:
                self._heard(seat, seat.link.receive())
        except LinkLostError as error:
            with self._lock:
                if not seat.over and self._lost is None:
                    self._lost = f"The staying task of slot {slot} is lost: {error}."
                self._lock.notify_all()
            self._changed()

    def _heard(self, seat: _Seat, message: Message) -> None:
        flushed: int | None = None
        with self._lock:
            if "marks" in message:
                seat.marks = frozenset(map(str, message["marks"]))
            elif "news" in message:
                seat.news = True
            elif "passed" in message:
                seat.passed = True
            elif "ballot" in message:
                report = Report(
                    ballot=str(message["ballot"]),
                    reached=message["reached"],
                    open=float(message["open"]),
                    at=time.monotonic(),
                )
                checkpoint = int(message["checkpoint"])
                if message.get("sent"):
                    seat.sent[checkpoint] = report
                else:
                    seat.reports[checkpoint] = report
                    flushed = checkpoint if self.reports(checkpoint) is not None else None
            elif "failed" in message:
                seat.over = True
                text = str(message["failed"])
                later = Postponed.of(str(message.get("postponed", "")))
                error = unusable_in(text) or TaskFailedError(text) if later is None else later.error()
                self._failure = self._failure or error
            elif "ended" in message:
                seat.over = True
            self._lock.notify_all()
            seats = list(self._seats.values())
        self._changed()
        if flushed is not None:
            for each in seats:
                with contextlib.suppress(LinkLostError):  # its listener notices
                    each.link.send({"flushed": flushed})


def _listen_on(bind: tuple[str, int], *, backlog: int) -> socket.socket:
    try:
        # with SO_REUSEADDR: connections of the last group may keep the port for a minute after their end
        return socket.create_server(bind, backlog=backlog)
    except OSError as error:
        why = str(error.strerror).partition(" (")[0]
        raise ConfigurationError(
            f"The driver cannot listen on {bind[0]} port {bind[1]} for its staying tasks: {why}. Nothing was read. "
            "Set spark.onceward.tasks.port to a port that no other process of this machine has, one for each job, "
            "or to 0 for a free one; the address is spark.driver.bindAddress."
        ) from None
