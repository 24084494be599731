"""A toxiproxy server as a process that ends with its owner, even if the owner is killed."""

import json
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import TracebackType
from typing import Self

from onceward.dev.errors import ToxiproxyError
from onceward.dev.kafka.places import free_ports
from onceward.dev.managed_process import ManagedProcess, NotStartedError
from onceward.dev.toxiproxy.api import Api
from onceward.dev.toxiproxy.binary import VERSION, toxiproxy_server
from onceward.dev.toxiproxy.link import Link

__all__ = ["LocalToxiproxy"]

_HOST = "127.0.0.1"
_START_LIMIT_S = 30.0


class LocalToxiproxy:
    """A context manager. `Link` disturbs its links. Not thread-safe."""

    def __init__(self, log: Path | None = None) -> None:
        """``log``: file for the server's output; None for a file that is removed at the end."""
        self._wanted_log = log
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._process: ManagedProcess | None = None
        self.pid = 0
        """Process id of the server while it runs."""

    def __enter__(self) -> Self:
        """Start the server. Raises `ToxiproxyError` with the server's own output."""
        server = toxiproxy_server()
        if self._wanted_log is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="onceward-toxiproxy-")
        self.log = self._wanted_log or Path(self._temporary.name if self._temporary else "", "server.log")
        port = free_ports(1, None)[0].client
        self._api = Api(_HOST, port)
        command = [str(server), "-host", _HOST, "-port", str(port)]
        try:
            # At this level each accepted connection logs a line, which `accepted` counts.
            self._process = ManagedProcess("the toxiproxy server", command, self.log, {"LOG_LEVEL": "info"})
            self.pid = self._process.pid
            self._wait(self._process)
        except NotStartedError as error:
            self.__exit__(None, None, None)
            raise ToxiproxyError(str(error)) from error
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.end()  # the server needs no orderly shutdown
            self._process = None
        if self._temporary is not None:
            self._temporary.cleanup()

    def link(self, name: str, upstream: str, listen: str | None = None) -> Link:
        """Create a link that leads to ``upstream``; ``listen`` is ``host:port``, None for a free port of loopback.

        Raises `ToxiproxyError` if the name or the port is in use.
        """
        listen = listen or f"{_HOST}:{free_ports(1, None)[0].client}"
        wanted = {"name": name, "upstream": upstream, "listen": listen, "enabled": True}
        self._api.call("post", "/proxies", wanted)
        link = Link(self._api, name)
        if (link.address, link.upstream, link.up) != (listen, upstream, True):
            raise ToxiproxyError(f"The link {name} was to lead from {listen} to {upstream}, and it does not.")
        return link

    def accepted(self) -> Counter[str]:
        """Return the number of connections that each link has ever accepted, by the link's name."""
        counts: Counter[str] = Counter()
        for line in self.log.read_bytes().splitlines():
            if b'"Accepted client"' in line:
                counts[json.loads(line)["name"]] += 1
        return counts

    def _wait(self, server: ManagedProcess) -> None:
        limit = time.monotonic() + _START_LIMIT_S
        while True:
            try:
                found = self._api.call("get", "/version")
            except ToxiproxyError as error:
                if server.exit_code is not None or time.monotonic() > limit:
                    raise ToxiproxyError(
                        f"The toxiproxy server did not start: {error} Its log: {server.tail()}"
                    ) from error
                time.sleep(0.02)
            else:
                if found != {"version": VERSION}:
                    raise ToxiproxyError(f"The toxiproxy server is {found}, not {VERSION}.")
                return
