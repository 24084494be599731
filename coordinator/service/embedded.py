"""The coordinator inside a driver: a background thread, a Unix socket, and a store under the state directory."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Self, cast

import grpc

from onceward.common.errors import CoordinatorLostError, StoreError
from onceward.coordinator.service.direct import DirectChannel
from onceward.coordinator.service.documents import Checkers
from onceward.coordinator.service.observer import Observer
from onceward.coordinator.service.server import CoordinatorServer, ServerOptions
from onceward.coordinator.service.state_dir import StateDirectory, state_directory
from onceward.coordinator.store.store import Store

__all__ = ["EmbeddedCoordinator", "shared_coordinator"]

_START_LIMIT_S = 30.0


class EmbeddedCoordinator:
    """Serves from construction to :meth:`close`. The store's lock keeps a second driver out of the directory.

    :param state_dir: where to keep the store; ``$ONCEWARD_STATE_DIR`` or ``./.onceward`` by default.
    :raises StoreUnusableError: another process uses the directory (its id is named), or it is on a network filesystem.
    :raises StoreError: the store is damaged or cannot be read.
    """

    def __init__(
        self,
        state_dir: str | os.PathLike[str] | None = None,
        *,
        options: ServerOptions | None = None,
        checkers: Checkers | None = None,
        observer: Observer | None = None,
    ) -> None:
        self._places = StateDirectory(state_directory(state_dir))
        self._store = Store.open(self._places.store_url)
        self._options = options if observer is None else replace(options or ServerOptions(), observer=observer)
        self._checkers = checkers
        self._ready = threading.Event()
        self._problem: BaseException | None = None
        self._failure: StoreError | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._server: CoordinatorServer | None = None
        self._closed = False
        try:
            self.address = f"unix:{self._places.socket()}"
            """For :func:`onceward.client.session.connect`; also in the file ``coordinator.address``."""
            self._thread = threading.Thread(target=self._run, name="onceward-coordinator", daemon=True)
            self._thread.start()
            if not self._ready.wait(_START_LIMIT_S):
                raise CoordinatorLostError(
                    f"The embedded coordinator did not start within {_START_LIMIT_S:g} s. Nothing was read or written."
                )
            if self._problem is not None:
                raise self._problem
            self._places.publish(self.address)
        except BaseException:
            self.close()
            raise

    def channel(self) -> grpc.Channel:
        """Return a channel for clients in this process, which needs no socket."""
        assert self._loop is not None, "it has started"
        assert self._server is not None, "it has started"
        return cast(grpc.Channel, DirectChannel(self._loop, self._server.find))

    @property
    def failed(self) -> StoreError | None:
        """Set when the store has failed. Nothing is served then, and whether the last write happened is unknown."""
        return self._failure

    def close(self) -> None:
        """Stop serving and release the directory. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._loop is not None and self._stop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._stop.set)
        thread = getattr(self, "_thread", None)
        if thread is not None and thread.is_alive():
            thread.join(_START_LIMIT_S)
        self._places.clean()
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception as error:  # noqa: BLE001 - handed to the thread that waits for the start
            self._problem = error
        finally:
            self._ready.set()

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        server = CoordinatorServer(self._store, options=self._options, checkers=self._checkers)
        self._server = server
        await server.start(self.address)
        self._ready.set()
        stopped = asyncio.create_task(self._stop.wait())
        failed = asyncio.create_task(server.failed())
        try:
            await asyncio.wait((stopped, failed), return_when=asyncio.FIRST_COMPLETED)
            self._failure = server.engine.failure
        finally:
            stopped.cancel()
            failed.cancel()
            await server.stop(0.5)


_sharing = threading.Lock()
_shared: dict[Path, tuple[EmbeddedCoordinator, int]] = {}
"""Coordinators of this process that jobs share, with the number of their users, by state directory."""


@contextlib.contextmanager
def shared_coordinator(
    state_dir: str | os.PathLike[str] | None = None, *, observer: Observer | None = None
) -> Iterator[EmbeddedCoordinator]:
    """Use the coordinator of a state directory together with other jobs of this process; the last user closes it. Only
    the first user's ``observer`` is called.

    Raises what the constructor of EmbeddedCoordinator raises.
    """
    directory = state_directory(state_dir)
    with _sharing:
        coordinator, users = _shared.get(directory, (None, 0))
        if coordinator is None:
            coordinator = EmbeddedCoordinator(directory, observer=observer)
        _shared[directory] = coordinator, users + 1
    try:
        yield coordinator
    finally:
        with _sharing:
            _, users = _shared.pop(directory)
            if users > 1:
                _shared[directory] = coordinator, users - 1
            else:
                coordinator.close()
