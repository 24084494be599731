"""The address to listen on: loopback only, unless clients are authenticated or the user explicitly allows it."""

import ipaddress
import re
from dataclasses import dataclass

from onceward.coordinator.errors import ConfigurationError

__all__ = ["DEFAULT_LISTEN", "Listen", "parse_listen"]

DEFAULT_LISTEN = "127.0.0.1:7878"

_ADDRESS = re.compile(r"(?:\[(?P<bracketed>[^\]]+)\]|(?P<plain>[^:\[\]]*)):(?P<port>\d{1,5})")


@dataclass(frozen=True, kw_only=True)
class Listen:
    """A host, without brackets, and a port; port 0 means any free one."""

    host: str
    port: int

    def with_port(self, port: int) -> str:
        """The address in the form that gRPC and people use."""
        return f"[{self.host}]:{port}" if ":" in self.host else f"{self.host}:{port}"

    @property
    def target(self) -> str:
        return self.with_port(self.port)

    @property
    def loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False  # a name may resolve to any address


def parse_listen(text: str, *, anywhere: bool = False) -> Listen:
    """Parse ``HOST:PORT`` or ``[IPV6]:PORT``. Raises ConfigurationError if malformed, or if not loopback unless
    ``anywhere``: clients are authenticated, or the user takes the risk."""
    match = _ADDRESS.fullmatch(text.strip())
    host = (match["bracketed"] or match["plain"]) if match else ""
    if match is None or not host or int(match["port"]) > 65535:
        raise ConfigurationError(
            f"{text!r} is no address to listen on. Nothing was started. Write HOST:PORT or [IPV6]:PORT, "
            f"for example {DEFAULT_LISTEN}"
        )
    listen = Listen(host=host, port=int(match["port"]))
    if not listen.loopback and not anywhere:
        raise ConfigurationError(
            f"{text} can be reached from other machines, and clients need no certificate: anyone there could stop jobs "
            "and decide checkpoints. Nothing was started. Pass --tls-cert, --tls-key and --client-ca, listen on "
            "127.0.0.1, or pass --insecure-listen-anywhere if only trusted machines reach it."
        )
    return listen
