"""The address to listen on: this machine only, unless clients are authenticated or the user explicitly allows it."""

import ipaddress
import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from onceward.common.errors import ConfigurationError

__all__ = ["DEFAULT_LISTEN", "LONGEST_SOCKET_PATH", "Listen", "parse_listen", "scratch_for_sockets"]

DEFAULT_LISTEN = "127.0.0.1:7878"

_UNIX = "unix:"
LONGEST_SOCKET_PATH = 100  # the kernel accepts 107 bytes

_ADDRESS = re.compile(r"(?:\[(?P<bracketed>[^\]]+)\]|(?P<plain>[^:\[\]]*)):(?P<port>\d{1,5})")


@dataclass(frozen=True, kw_only=True)
class Listen:
    """A host, without brackets, and a port; port 0 means any free one. Or the path of a Unix socket."""

    host: str = ""
    port: int = 0
    path: Path | None = None

    def with_port(self, port: int) -> str:
        """The address in the form that gRPC and people use."""
        if self.path is not None:
            return f"{_UNIX}{self.path}"
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"

    @property
    def target(self) -> str:
        return self.with_port(self.port)

    @property
    def loopback(self) -> bool:
        if self.path is not None or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False  # a name may resolve to any address


def parse_listen(text: str, *, anywhere: bool = False) -> Listen:
    """Parse ``HOST:PORT``, ``[IPV6]:PORT`` or ``unix:PATH``. Raises ConfigurationError if malformed, or if not on this
    machine unless ``anywhere``: clients are authenticated, or the user takes the risk."""
    if text.startswith(_UNIX):
        return Listen(path=_socket_path(text))
    match = _ADDRESS.fullmatch(text.strip())
    host = (match["bracketed"] or match["plain"]) if match else ""
    if match is None or not host or int(match["port"]) > 65535:
        raise ConfigurationError(
            f"{text!r} is no address to listen on. Nothing was started. Write HOST:PORT, [IPV6]:PORT or "
            f"unix:PATH, for example {DEFAULT_LISTEN}"
        )
    listen = Listen(host=host, port=int(match["port"]))
    if not listen.loopback and not anywhere:
        raise ConfigurationError(
            f"{text} can be reached from other machines, and clients need no certificate: anyone there could stop jobs "
            "and decide checkpoints. Nothing was started. Pass --tls-cert, --tls-key and --client-ca or --rights, "
            "listen on 127.0.0.1, or pass --insecure-listen-anywhere if only trusted machines reach it."
        )
    return listen


def scratch_for_sockets() -> str:
    """Where to make a directory ``onceward-...`` for a socket ``coordinator.sock``: the directory for temporary files,
    or ``/tmp`` if paths in it would be too long."""
    scratch = tempfile.gettempdir()
    short = len(os.fsencode(f"{scratch}/onceward-12345678/coordinator.sock")) <= LONGEST_SOCKET_PATH
    return scratch if short else "/tmp"


def _socket_path(text: str) -> Path:
    path = Path(text.removeprefix(_UNIX)).absolute()
    if text == _UNIX or len(os.fsencode(path)) > LONGEST_SOCKET_PATH:
        raise ConfigurationError(
            f"{text!r} is no socket to listen on: a path has 1 to {LONGEST_SOCKET_PATH} bytes. Nothing was started. "
            "Write for example unix:/run/onceward/coordinator.sock"
        )
    return path
