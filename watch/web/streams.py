"""Views as streams of server-sent events. While a view has a stream, one task looks at it for all of them.

A stream begins with the page, and has it again when it has changed. After every look it has the time of the reading, so
that a browser knows that what it shows is still so. It carries only views that can be shown: when one cannot be any
more, its streams end, and who asks again gets the reason.
"""

import asyncio
import hashlib
import re
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias

from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

__all__ = ["LONGEST_S", "MAX_STREAMS", "Stream", "Streams"]

_Look: TypeAlias = Callable[[], Response]
_Key: TypeAlias = tuple[str, str]
"""The visitor's token and the address."""

MAX_STREAMS = 32
"""Open at a time: half of the connections, so that streams leave room for everything else."""
LONGEST_S = 25.0
"""Then a stream ends, before its connection would be cut, and the browser opens the next."""
_RETRY_MS = 500
_SOONEST_S = 1.0
_LATEST_S = 10.0
_SHARE = 125
"""Pause before the next look, in durations of the last one, within these bounds: under 1 % of a core per view."""

_PASSING = re.compile(r'<p class="[^"]*\bread">.*?</p>|(?<=>)[^<]*(?=</time>)')
"""What changes with time alone. The script keeps it up to date."""
_READ = re.compile(r'<p class="[^"]*\bread">[^<]*<time datetime="([^"]*)"')


class Streams:
    """All streams of one event loop."""

    def __init__(self) -> None:
        self._watched: dict[_Key, _Watched] = {}
        self._open = 0
        self._closed = False

    def close(self) -> None:
        """End all streams at once. Idempotent."""
        self._closed = True
        for watched in self._watched.values():
            watched.end()

    def enter(self, key: _Key, look: _Look) -> "_Watched | None":
        """Return the view, watched until `leave`; None if it gets no stream."""
        if self._closed or self._open >= MAX_STREAMS:
            return None
        watched = self._watched.get(key)
        if watched is None or watched.over:
            watched = self._watched[key] = _Watched(look)
        watched.streams += 1
        self._open += 1
        return watched

    def leave(self, key: _Key, watched: "_Watched") -> None:
        watched.streams -= 1
        self._open -= 1
        if not watched.streams:
            watched.end()
            if self._watched.get(key) is watched:
                del self._watched[key]


class _Watched:
    """One view, and the task that looks at it."""

    def __init__(self, look: _Look) -> None:
        self.streams = 0
        self.over = False
        self.version = ""
        """Of the page; empty before the first look."""
        self.page = self.read = b""
        """Events."""
        self.failure: Exception | None = None
        self.next: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done after the next look."""
        self._look = look
        self._task = asyncio.create_task(self._watch())

    def end(self) -> None:
        self.over = True
        self._task.cancel()
        self._wake()

    async def _watch(self) -> None:
        try:
            while True:
                begun = time.perf_counter()
                self.version, self.page, self.read = await run_in_threadpool(self._seen)
                self._wake()
                await asyncio.sleep(min(_LATEST_S, max(_SOONEST_S, _SHARE * (time.perf_counter() - begun))))
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the answer to those who ask for the view
            self.failure, self.over = error, True
            self._wake()

    def _seen(self) -> tuple[str, bytes, bytes]:
        text = bytes(self._look().body).decode()
        version = hashlib.sha256(_PASSING.sub("", text).encode()).hexdigest()[:16]
        if version == self.version:
            page = self.page
        else:
            page = "".join((f"id: {version}\n", *(f"data: {line}\n" for line in text.split("\n")), "\n")).encode()
        read = _READ.search(text)
        return version, page, f"event: read\ndata: {read[1] if read else ''}\n\n".encode()

    def _wake(self) -> None:
        waited_for, self.next = self.next, asyncio.get_running_loop().create_future()
        if not waited_for.done():
            waited_for.set_result(None)


class Stream(Response):
    """Raises what the first look raises; then nothing was sent."""

    media_type = "text/event-stream"

    def __init__(self, streams: Streams, key: _Key, look: _Look, known: str, permitted: Callable[[], bool]) -> None:
        """
        :param known: the version that the browser has; empty for none.
        :param permitted: whether the visitor may still see it. Asked before every event.
        """
        super().__init__()
        del self.headers["content-length"]
        self._streams, self._key, self._look = streams, key, look
        self._known, self._permitted = known, permitted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watched = self._streams.enter(self._key, self._look)
        if watched is None:
            await PlainTextResponse("There are too many streams. Ask for the page.\n", 503)(scope, receive, send)
            return
        gone = asyncio.create_task(_gone(receive))
        try:
            if not watched.version:
                await asyncio.wait((watched.next, gone), return_when=asyncio.FIRST_COMPLETED)
            if watched.failure is not None:
                raise watched.failure
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            await self._send(f"retry: {_RETRY_MS}\n\n".encode(), send)
            await self._follow(watched, gone, send)
            with suppress(OSError):
                await send({"type": "http.response.body", "body": b""})
        finally:
            gone.cancel()
            self._streams.leave(self._key, watched)

    async def _follow(self, watched: _Watched, gone: "asyncio.Task[None]", send: Send) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + LONGEST_S
        while not watched.over and not gone.done() and self._permitted():
            following = watched.next
            if self._known != watched.version:
                self._known = watched.version
                await self._send(watched.page, send)
            await self._send(watched.read, send)
            left = end - loop.time()
            if left <= 0:
                break
            await asyncio.wait((following, gone), timeout=left, return_when=asyncio.FIRST_COMPLETED)

    @staticmethod
    async def _send(event: bytes, send: Send) -> None:
        await send({"type": "http.response.body", "body": event, "more_body": True})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
