"""Which of librdkafka's settings this code follows, and their values.

A setting that it does not know may change what a job reads or whom it trusts, so a client with such a setting must be
one of librdkafka: :func:`unfollowed` names them.
"""

import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

from onceward.connections.sockets.metadata import Address

__all__ = ["ConnectionSettings", "unfollowed"]

_FOLLOWED = frozenset(
    {
        "bootstrap.servers",
        "client.id",
        "connections.max.idle.ms",
        "receive.message.max.bytes",
        "reconnect.backoff.max.ms",
        "reconnect.backoff.ms",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.password",
        "sasl.username",
        "security.protocol",
        "socket.connection.setup.timeout.ms",
        "socket.keepalive.enable",
        "socket.receive.buffer.bytes",
        "socket.send.buffer.bytes",
        "socket.timeout.ms",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.crl.location",
        "ssl.endpoint.identification.algorithm",
        "ssl.key.location",
        "ssl.key.password",
    }
)
_WITHOUT_EFFECT = frozenset(
    {
        # Always so here: all addresses of a name are tried, requests are never held back, and the bootstrap servers are
        # asked again when no broker answers.
        "client.dns.lookup",
        "enable.ssl.certificate.verification",
        "metadata.max.age.ms",
        "metadata.recovery.strategy",
        "socket.nagle.disable",
        "topic.metadata.refresh.interval.ms",
        "log_level",
    }
)
_ONLY = {
    "client.dns.lookup": "use_all_dns_ips",
    "enable.partition.eof": "true",
    "isolation.level": "read_committed",
}
"""The one value of a setting that is followed."""


def unfollowed(config: Mapping[str, Any], more: frozenset[str]) -> list[str]:
    """Return the keys of ``config`` that only librdkafka follows. ``more``: what the caller follows by itself."""
    known = _FOLLOWED | _WITHOUT_EFFECT | more
    return sorted(key for key, value in config.items() if key not in known or str(value) != _ONLY.get(key, str(value)))


@dataclass(frozen=True, kw_only=True)
class ConnectionSettings:
    """How to connect. Times are in seconds."""

    bootstrap: Sequence[Address]
    client_id: str = "rdkafka"
    """librdkafka's default: quotas and logs of brokers name it."""
    tls: bool = False
    authority: str | None = None
    """File; None: the system's."""
    certificate: str | None = None
    key: str | None = None
    key_password: str | None = field(default=None, repr=False)
    revoked: str | None = None
    """File of certificates that are not valid any more."""
    check_host: bool = True
    mechanism: str | None = None
    """Of SASL."""
    user: str = ""
    password: str = field(default="", repr=False)
    setup_s: float = 30.0
    """Limit for opening a connection."""
    answer_s: float = 60.0
    """Limit for an answer."""
    pause_s: float = 0.1
    """Before the second attempt to connect; doubled for each further one."""
    longest_pause_s: float = 10.0
    idle_s: float | None = None
    """After this time without a request, a connection is closed."""
    keep_alive: bool = False
    receive_buffer: int = 0
    send_buffer: int = 0
    """Bytes; 0: the system's default."""
    largest: int = 100_000_000
    """Bytes of an answer."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Self:
        """``config``: librdkafka's properties, with secrets resolved."""

        def ms(key: str, default: float) -> float:
            return int(config[key]) / 1000 if key in config else default

        protocol = str(config.get("security.protocol", "PLAINTEXT")).upper()
        mechanism = str(config.get("sasl.mechanisms", config.get("sasl.mechanism", ""))).upper()
        return cls(
            bootstrap=[_address(server) for server in str(config["bootstrap.servers"]).split(",")],
            client_id=str(config.get("client.id", cls.client_id)),
            tls=protocol.endswith("SSL"),
            authority=config.get("ssl.ca.location"),
            certificate=config.get("ssl.certificate.location"),
            key=config.get("ssl.key.location"),
            key_password=config.get("ssl.key.password"),
            revoked=config.get("ssl.crl.location"),
            check_host=str(config.get("ssl.endpoint.identification.algorithm", "https")).lower() == "https",
            mechanism=mechanism if protocol.startswith("SASL_") else None,
            user=str(config.get("sasl.username", "")),
            password=str(config.get("sasl.password", "")),
            setup_s=ms("socket.connection.setup.timeout.ms", cls.setup_s),
            answer_s=ms("socket.timeout.ms", cls.answer_s),
            pause_s=max(0.001, ms("reconnect.backoff.ms", cls.pause_s)),
            longest_pause_s=max(0.001, ms("reconnect.backoff.max.ms", cls.longest_pause_s)),
            idle_s=ms("connections.max.idle.ms", 0.0) or None,
            keep_alive=str(config.get("socket.keepalive.enable", "false")).lower() == "true",
            receive_buffer=int(config.get("socket.receive.buffer.bytes", 0)),
            send_buffer=int(config.get("socket.send.buffer.bytes", 0)),
            largest=int(config.get("receive.message.max.bytes", cls.largest)),
        )

    @cached_property
    def context(self) -> ssl.SSLContext:
        """For TLS. Raises OSError for files that are missing or wrong."""
        made = ssl.create_default_context(cafile=self.authority)
        made.check_hostname = self.check_host
        if self.revoked is not None:
            made.load_verify_locations(self.revoked)
            made.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        if self.certificate is not None:
            made.load_cert_chain(self.certificate, self.key, self.key_password)
        return made


def _address(server: str) -> Address:
    host, _, port = server.strip().rpartition(":")
    return Address(host.removeprefix("[").removesuffix("]"), int(port))
