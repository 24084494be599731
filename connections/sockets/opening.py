"""Opens a connection: TCP, TLS, the broker's versions, credentials. Blocks, so it runs in a thread of its own."""

import socket
import time
from collections.abc import Callable

from onceward.connections.sockets.connection import Connection
from onceward.connections.sockets.encoding import Decoder, Encoder, GarbledError
from onceward.connections.sockets.metadata import Address
from onceward.connections.sockets.requests import Api, Content, Request
from onceward.connections.sockets.sasl import RefusedError, exchange
from onceward.connections.sockets.settings import ConnectionSettings

__all__ = ["NotOpenedError", "opened"]

_RENEW = 0.8
"""Share of a session's time after which a connection is replaced (KIP-368)."""


class NotOpenedError(Exception):
    """A broker cannot be reached, is no broker, or refused the credentials."""


def opened(address: Address, settings: ConnectionSettings) -> Connection:
    """Return a connection that takes requests. Raises NotOpenedError."""
    until = time.monotonic() + settings.setup_s
    step = "connect"
    made: Connection | None = None
    try:
        sock = socket.create_connection(address, settings.setup_s)
        try:
            _tune(sock, settings)
            if settings.tls:
                step = "agree on TLS"
                sock.settimeout(max(0.001, until - time.monotonic()))
                sock = settings.context.wrap_socket(sock, server_hostname=address.host)
            made = Connection(sock, client_id=settings.client_id, largest=settings.largest)
        except BaseException:
            sock.close()
            raise
        step = "learn its versions"
        made.offered = _versions(made, until)
        if settings.mechanism:
            step = f"log in by {settings.mechanism}"
            _log_in(made, settings, until)
    except (OSError, GarbledError, RefusedError) as error:
        if made is not None:
            made.close(str(error))
        raise NotOpenedError(f"cannot {step}: {error or type(error).__name__}") from None
    return made


def _tune(sock: socket.socket, settings: ConnectionSettings) -> None:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if settings.keep_alive:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if settings.receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, settings.receive_buffer)
    if settings.send_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, settings.send_buffer)


class _Asked(Request):
    """A request whose answer is used at once. :meth:`Connection.ask` raises what goes wrong."""

    def __init__(self, api: Api, fill: Callable[[Encoder], None], read: Callable[[Decoder], None]) -> None:
        self.api, self._fill, self._read = api, fill, read

    def encode(self, version: int, *, flexible: bool) -> Content:
        out = Encoder(flexible=flexible)
        self._fill(out)
        return [out.data]

    def answered(self, version: int, answer: Decoder) -> None:
        self._read(answer)

    def lost(self, why: str) -> None:
        pass


def _versions(made: Connection, until: float) -> dict[int, tuple[int, int]]:
    found: dict[int, tuple[int, int]] = {}

    def read(answer: Decoder) -> None:
        if error := answer.number("h"):
            raise GarbledError(f"ApiVersions 0 was answered with error {error}")
        for _ in answer.array():
            api, lowest, highest = answer.take("hhh")
            found[api] = lowest, highest

    made.ask(_Asked(Api.API_VERSIONS, lambda out: None, read), until)
    return found


def _log_in(made: Connection, settings: ConnectionSettings, until: float) -> None:
    mechanism = settings.mechanism or ""

    def offered(answer: Decoder) -> None:
        if answer.number("h"):
            names = ", ".join(filter(None, (answer.text() for _ in answer.array())))
            raise RefusedError(f"the broker takes {names or 'no mechanism'} here")

    made.ask(_Asked(Api.SASL_HANDSHAKE, lambda out: out.text(mechanism), offered), until)
    answered: list[bytes] = []

    def read(answer: Decoder) -> None:
        error, why, said = answer.number("h"), answer.text(), answer.bytes_()
        if error:
            raise RefusedError(why or f"error {error}")
        answered.append(said or b"")
        if Api.SASL_AUTHENTICATE in made.offered and made.offered[Api.SASL_AUTHENTICATE][1] >= 1:
            lives_ms = answer.number("q")
            made.expires = time.monotonic() + _RENEW * lives_ms / 1000 if lives_ms > 0 else None

    steps = exchange(mechanism, settings.user, settings.password)
    message = next(steps)
    while True:
        content = message
        made.ask(_Asked(Api.SASL_AUTHENTICATE, lambda out, content=content: out.bytes_(content), read), until)  # type: ignore[misc]
        try:
            message = steps.send(answered.pop())
        except StopIteration:
            return
