"""``onceward serve``: one coordinator in the foreground."""

import asyncio
import ctypes
import gc
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from onceward.common.backoff import Backoff
from onceward.common.errors import ConfigurationError, StoreError
from onceward.common.links import Links
from onceward.common.printable import log_fields, logger
from onceward.coordinator.service.listen import Listen
from onceward.coordinator.service.server import CoordinatorServer, ServerOptions
from onceward.coordinator.store.database import Candidate
from onceward.coordinator.store.errors import StoreDamagedError
from onceward.coordinator.store.opening import open_candidate
from onceward.coordinator.store.private import make_private_directory
from onceward.coordinator.store.store import Store
from onceward.wire.limits import MAX_MESSAGE_BYTES
from onceward.wire.rows import Leader

__all__ = ["Serving", "serve"]

_log = logger("onceward.service")

_LINK = "store"
_LOOK_S = 0.5
"""How often a process that stands by looks who leads. It notices at once that the lead is free."""
_FIRST_LOOK_S = 0.05
"""Then the process announces that it stands by."""
_STEADY_S = 10.0
"""A lead that lasted longer resets the pause before the next try."""

_SWITCH_INTERVAL_S = 0.0005
"""The disk's thread releases the interpreter with every statement. With Python's default of 5 ms it regained the
interpreter so late that on a busy core every decision waited for hundreds of milliseconds while calls came in."""
_M_MMAP_THRESHOLD = -3


@dataclass(frozen=True, kw_only=True)
class Serving:
    """What ``onceward serve`` was asked for."""

    listen: Listen
    advertise: str
    """The address that clients reach; empty for the one that the process listens on."""
    store_url: str
    store_password: str | None
    options: ServerOptions
    web: str = ""
    """The address of the page, for browsers elsewhere; empty for none."""
    sockets: Sequence[str] = ()
    """More targets ``unix:PATH`` to listen on, in directories that only this user may enter."""


def serve(serving: Serving, announce: Callable[[str, Store | None], None]) -> None:
    """Serve until SIGTERM or SIGINT.

    Several processes may serve one store on PostgreSQL: one leads, the others stand by. A process that loses such a
    store stands by too, until it leads again. One that loses a store on SQLite ends.

    Raises StoreError as soon as a store on SQLite fails; ConfigurationError and StoreUnusableError at the start.

    :param announce: called once, when the process listens, with its address, and with the store if it leads.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    os.umask(0o077)  # of everything that this process makes: gRPC's socket, SQLite's log
    _give_memory_back()
    asyncio.run(_run(serving, announce))


async def _run(serving: Serving, announce: Callable[[str, Store | None], None]) -> None:
    await _Process(serving, announce).run()  # gRPC's server belongs to the loop in which it is made


def _give_memory_back() -> None:
    """Make the C library return freed memory. It does so only for blocks large enough to be mapped separately. With
    this threshold long requests are, so the memory of a busy moment is not kept."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # of glibc only
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, MAX_MESSAGE_BYTES)


def _spare_collections() -> None:
    """Keep what is loaded by now out of garbage collections. It lives as long as the process, and each full collection
    that looks through it stops the loop for 60 ms."""
    gc.collect()
    gc.freeze()


def _free(path: Path) -> None:
    """Remove a socket that a killed process has left at ``path``; gRPC would take it from a living one. Raises
    ConfigurationError if the path is in use, StoreUnusableError if others may write to its directory."""
    make_private_directory(path.parent)
    if not os.path.lexists(path):
        return
    used = not stat.S_ISSOCK(os.lstat(path).st_mode)
    with closing(socket.socket(socket.AF_UNIX)) as peer, suppress(ConnectionRefusedError):
        if not used:
            peer.connect(str(path))
            used = True
    if used:
        raise ConfigurationError(
            f"Cannot listen on unix:{path}: something uses it. Nothing was started. Choose another with --listen, or "
            "stop what uses it."
        )
    path.unlink()


class _BrokenSessionError(StoreError):
    """A session that was fit to lead was lost."""


class _Process:
    """Stands by and leads in turn."""

    def __init__(self, serving: Serving, announce: Callable[[str, Store | None], None]) -> None:
        self._serving = serving
        self._announce: Callable[[str, Store | None], None] | None = announce
        self._server = CoordinatorServer(options=serving.options)
        self._stopping = asyncio.Event()
        self._address = ""
        self._links = Links()
        self._backoff = Backoff(first=0.1, longest=1.0)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        # An event is handled in one piece on this loop, so a signal is handled between two events, never in a decision.
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopping.set)
        listen = self._serving.listen
        candidate = self._candidate()
        try:
            if listen.path is not None:
                _free(listen.path)
            port, *_ = await self._server.start(listen.target, *self._serving.sockets)
        except BaseException:
            candidate.close()
            raise
        self._address = listen.with_port(port)
        try:
            await self._take_turns(candidate)
        finally:
            await self._server.stop()
            if listen.path is not None:
                listen.path.unlink(missing_ok=True)

    async def _take_turns(self, candidate: Candidate | None) -> None:
        while not self._stopping.is_set():
            store = await self._stand_by(candidate)
            if store is None:
                return
            candidate = None
            failure = await self._lead(store)
            if failure is not None and (isinstance(failure, StoreDamagedError) or not store.can_move):
                raise failure

    async def _stand_by(self, candidate: Candidate | None) -> Store | None:
        """Wait for the lead; return None when the process is to stop. Raises what keeps it from ever leading."""
        while not self._stopping.is_set():
            try:
                if candidate is None:
                    candidate = await asyncio.to_thread(self._candidate)
                with closing(candidate):
                    return await self._wait(candidate)
            except StoreError as error:
                fit = isinstance(error, _BrokenSessionError)
                if (self._announce is not None and not fit) or isinstance(error, StoreDamagedError):
                    raise
                await self._wait_for_the_store(error)
            candidate = None
        return None

    async def _wait(self, candidate: Candidate) -> Store | None:
        """Wait until this process leads, or is to stop."""
        await self._server.ready(True)
        database = None
        while database is None and not self._stopping.is_set():
            try:
                database = await asyncio.to_thread(candidate.wait, _FIRST_LOOK_S if self._announce else _LOOK_S)
                if database is None:
                    await self._show_leader(await asyncio.to_thread(candidate.leader))
            except StoreError as error:
                if candidate.waits:
                    raise _BrokenSessionError(str(error)) from error
                raise
            self._links.worked(_LINK)
        if database is None:
            return None
        address = self._serving.advertise or self._address
        return await asyncio.to_thread(partial(Store.lead, database, address=address, web=self._serving.web))

    async def _wait_for_the_store(self, error: StoreError) -> None:
        await self._server.ready(False)
        await self._server.stand_by("this coordinator cannot use its store")
        self._links.failed(_LINK, error, waiting="the lead")
        await self._pause()

    def _candidate(self) -> Candidate:
        return open_candidate(self._serving.store_url, self._serving.store_password)

    async def _show_leader(self, leader: Leader | None) -> None:
        known = leader.address if leader is not None else ""
        await self._server.stand_by(f"this coordinator stands by; {known or 'another one'} leads", leader)
        self._announce_once(None)

    async def _lead(self, store: Store) -> StoreError | None:
        """Lead until the process is to stop, or until the store fails: then return the failure."""
        begun = time.monotonic()
        try:
            failure = await self._lead_until_failure(store)
        finally:
            await asyncio.to_thread(store.close)
        if failure is not None and store.can_move:
            _log.warning("%s", log_fields({"event": "stands_by", "term": store.term.number, "detail": failure}))
            if time.monotonic() - begun > _STEADY_S:
                self._backoff.reset()
            await self._pause()
        return failure

    async def _lead_until_failure(self, store: Store) -> StoreError | None:
        try:
            await self._server.lead(store)
        except StoreError as error:  # its jobs cannot be read
            return error
        term = store.term
        said = {"event": "leads", "store": store.store_id, "term": term.number, "address": term.address}
        _log.info("%s", log_fields(said))
        self._announce_once(store)
        stopping, failed = asyncio.create_task(self._stopping.wait()), asyncio.create_task(self._server.failed())
        try:
            await asyncio.wait((stopping, failed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            failed.cancel()
        failure = self._server.engine.failure
        await self._server.stand_by(
            "this coordinator stops" if failure is None else "this coordinator has lost its store"
        )
        return failure

    def _announce_once(self, store: Store | None) -> None:
        if self._announce is not None:
            announce, self._announce = self._announce, None
            _spare_collections()
            announce(self._address, store)

    async def _pause(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(self._backoff.next()):
                await self._stopping.wait()
