"""``onceward serve``: one coordinator in the foreground."""

import asyncio
import ctypes
import os
import signal
import socket
import stat
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from onceward.coordinator.errors import ConfigurationError
from onceward.coordinator.service.listen import Listen
from onceward.coordinator.service.server import CoordinatorServer, ServerOptions
from onceward.coordinator.store.private import make_private_directory
from onceward.coordinator.store.store import Store
from onceward.coordinator.wire.limits import MAX_MESSAGE_BYTES

__all__ = ["serve"]

_SWITCH_INTERVAL_S = 0.0005
"""The disk's thread releases the interpreter with every statement. With Python's default of 5 ms it regained the
interpreter so late that on a busy core every decision waited for hundreds of milliseconds while calls came in."""
_M_MMAP_THRESHOLD = -3


def serve(
    listen: Listen, open_store: Callable[[], Store], options: ServerOptions, announce: Callable[[str, str], None]
) -> None:
    """Serve until SIGTERM or SIGINT. Raises StoreError as soon as the store fails, ConfigurationError at the start.

    :param announce: called once, with the address and the store's id, when calls are accepted.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    os.umask(0o077)  # of everything that this process makes: gRPC's socket, SQLite's log
    _give_memory_back()
    store = open_store()
    try:
        asyncio.run(_serve(listen, store, options, announce))
    finally:
        store.close()


def _give_memory_back() -> None:
    """Make the C library return freed memory. It does so only for blocks large enough to be mapped separately. With
    this threshold long requests are, so the memory of a busy moment is not kept."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # of glibc only
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, MAX_MESSAGE_BYTES)


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


async def _serve(listen: Listen, store: Store, options: ServerOptions, announce: Callable[[str, str], None]) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    # An event is handled in one piece on this loop, so a signal is handled between two events, never inside a decision.
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = CoordinatorServer(store, options=options)
    if listen.path is not None:
        _free(listen.path)
    (port,) = await server.start(listen.target)
    announce(listen.with_port(port), store.store_id)
    stopped, failed = asyncio.create_task(stop.wait()), asyncio.create_task(server.failed())
    try:
        await asyncio.wait((stopped, failed), return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopped.cancel()
        failed.cancel()
        await server.stop()
        if listen.path is not None:
            listen.path.unlink(missing_ok=True)
    if server.engine.failure is not None:
        raise server.engine.failure
