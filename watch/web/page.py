"""The page's server: a thread and an event loop of its own, so that it never holds up the coordinator's."""

import asyncio
import ipaddress
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from urllib.parse import urlsplit

from onceward.client.access import CoordinatorAccess
from onceward.common.errors import ConfigurationError
from onceward.coordinator.service.listen import Listen, parse_listen

__all__ = ["Page", "place_in_driver", "place_of_page", "published", "require_installed"]

_MAX_CONNECTIONS = 64
"""Open at a time; further connections are closed at once."""
_LONGEST_S = 30.0
"""A connection is closed after this time, whatever it does. Each carries one request."""
_MAX_HEAD_BYTES = 16 * 1024
_BACKLOG = 64


def require_installed() -> None:
    """Raise ConfigurationError if a package of ``onceward[web]`` is missing."""
    missing = [package for package in ("starlette", "uvicorn", "jinja2") if find_spec(package) is None]
    if missing:
        raise ConfigurationError(
            f"The page needs packages that are not installed ({', '.join(missing)}). Nothing was started. Install them "
            "with: pip install 'onceward[web]'"
        )


def place_of_page(text: str, *, anywhere: bool) -> Listen:
    """Parse ``HOST:PORT``. Raises ConfigurationError.

    :param anywhere: visitors prove who they are, or the user allows an address that other machines can reach.
    """
    listen = parse_listen(text, anywhere=True)
    if listen.path is not None:
        raise ConfigurationError(f"--web {text}: browsers need HOST:PORT. Nothing was started.")
    if not listen.loopback and not anywhere:
        raise ConfigurationError(
            f"--web {text} can be reached from other machines, and visitors prove nothing: anyone there could read "
            "what all jobs do. Nothing was started. Serve it on 127.0.0.1 and reach it through a tunnel by ssh, pass "
            "--tls-cert and --tls-key with --rights or --client-ca, or pass --insecure-listen-anywhere if only trusted "
            "machines reach it."
        )
    return listen


def place_in_driver(web: str | None, access: CoordinatorAccess) -> Listen | None:
    """Return where to serve the page of the coordinator in this process; None if it is not wanted. Raises
    ConfigurationError."""
    if web is None:
        return None
    listen = parse_listen(web, anywhere=True)
    if not access.embedded:
        raise ConfigurationError(
            f"web: the coordinator at {access.address} is in another process. Nothing was started. Leave web out, and "
            "run onceward serve --web HOST:PORT there."
        )
    if listen.path is not None or not listen.loopback:
        raise ConfigurationError(
            f"web: {web} is no HOST:PORT of this machine only, and visitors prove nothing. Nothing was started. Use "
            "127.0.0.1 and a tunnel by ssh, or run onceward serve --web HOST:PORT with TLS and --rights."
        )
    require_installed()
    return listen


def published(url: str, place: Listen, advertise: str) -> str:
    """Return the address of a page that browsers elsewhere may follow; empty if there is none that could not mislead.

    :param url: where the page listens.
    :param place: where the coordinator listens.
    :param advertise: the address that its clients reach; empty for ``place``.
    """
    parts = urlsplit(url)
    page = parse_listen(parts.netloc, anywhere=True)
    here = place if not advertise else parse_listen(advertise, anywhere=True)
    if _everywhere(page.host):
        if here.path is not None or _everywhere(here.host):
            return ""
        page = replace(page, host=here.host)
    if page.loopback and not here.loopback:
        return ""  # there, another machine would answer: the visitor's own
    return f"{parts.scheme}://{page.target}/"


def _everywhere(host: str) -> bool:
    """True for the address that stands for all addresses of a machine."""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


class Page:
    """Serves from construction to :meth:`close`."""

    def __init__(self, listen: Listen, tls: Callable[[], ssl.SSLContext] | None = None) -> None:
        """Raises ConfigurationError for an address that cannot be used, or a missing package.

        :param tls: makes the context of each connection. Without it, no visitor can sign in.
        """
        require_installed()
        import uvicorn

        from onceward.watch.web.application import HEADERS, application
        from onceward.watch.web.connections import bounded
        from onceward.watch.web.reading import Reader
        from onceward.watch.web.streams import Streams

        self._socket = _listening(listen)
        self.url = f"{'http' if tls is None else 'https'}://{listen.with_port(self._socket.getsockname()[1])}/"
        self._reader = Reader()
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # a client chooses the text of the rest
        streams = Streams()

        class Server(uvicorn.Server):
            async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
                streams.close()  # it waits for all that is open
                await super().shutdown(sockets)

        self._server = Server(
            uvicorn.Config(
                application(self._reader, streams, None if tls is not None else listen.host),
                loop="asyncio",
                http=bounded(_MAX_CONNECTIONS, _LONGEST_S, tls),  # type: ignore[arg-type]  # it is only called
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                headers=list(HEADERS.items()),
                h11_max_incomplete_event_size=_MAX_HEAD_BYTES,
                backlog=_BACKLOG,
                timeout_graceful_shutdown=1,
            )
        )
        self._thread = threading.Thread(target=self._run, name="onceward-page", daemon=True)
        self._thread.start()

    def attach(self, own_address: str, address: str) -> None:
        """Show the coordinator that listens at ``own_address``; commands reach it at ``address``."""
        self._reader.attach(own_address, address)

    def close(self) -> None:
        """Serve no more."""
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()
        self._reader.close()

    def _run(self) -> None:
        asyncio.run(self._server.serve(sockets=[self._socket]))


def _listening(listen: Listen) -> socket.socket:
    made = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(listen.host, listen.port, type=socket.SOCK_STREAM)[0]
        made = socket.socket(family, kind, protocol)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(_BACKLOG)
    except OSError as error:
        if made is not None:
            made.close()
        raise ConfigurationError(
            f"Cannot serve the page on {listen.target}: {error.strerror or error}. Nothing was started. Choose another "
            "address, or stop what uses it."
        ) from None
    return made
