"""TLS towards the coordinator: credentials from files, and what is wrong when no connection comes about.

gRPC reports every failed handshake as UNAVAILABLE, so the reason is found with a handshake by the standard library.
"""

import os
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Any, Self, cast

import grpc

from onceward.client.channels import StubChannel
from onceward.common.errors import ConfigurationError
from onceward.wire.pem import expiry_in, no_password, version_of

__all__ = ["CoordinatorTls", "diagnose", "renewing"]

_HANDSHAKE_LIMIT_S = 2.0
_HAS_EXPIRED = 10
"""OpenSSL's X509_V_ERR_CERT_HAS_EXPIRED."""
_VARIABLES = {"ca": "ONCEWARD_TLS_CA", "certificate": "ONCEWARD_TLS_CERT", "key": "ONCEWARD_TLS_KEY"}


@dataclass(frozen=True, kw_only=True, slots=True)
class CoordinatorTls:
    """How to trust a coordinator, and how to be trusted by it. PEM files, read again for each new connection when they
    have changed, so that certificates can be replaced while a job runs."""

    ca: str | os.PathLike[str]
    """Certificates of the authorities that sign the coordinator's certificate."""
    certificate: str | os.PathLike[str] | None = None
    """The client's certificate, with intermediate ones, if the coordinator requires one (``--client-ca``)."""
    key: str | os.PathLike[str] | None = None
    """The private key of ``certificate``, without a password."""

    @classmethod
    def from_environment(cls) -> Self | None:
        """What ``ONCEWARD_TLS_CA``, ``ONCEWARD_TLS_CERT`` and ``ONCEWARD_TLS_KEY`` name; None without the first."""
        given = {name: os.environ.get(variable) or None for name, variable in _VARIABLES.items()}
        ca = given.pop("ca")
        if ca is None and any(given.values()):
            raise ConfigurationError(
                f"{_VARIABLES['certificate']} or {_VARIABLES['key']} is set, and {_VARIABLES['ca']} is not. Nothing "
                "was sent. Name the certificates of the authority that signed the coordinator's."
            )
        return None if ca is None else cls(ca=ca, **given)

    def context(self) -> ssl.SSLContext:
        """The same trust for the standard library. Raises ConfigurationError if a file cannot be used."""
        if (self.certificate is None) != (self.key is None):
            raise ConfigurationError("A client certificate and its key go together. Nothing was sent.")
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate is not None:
                context.load_cert_chain(self.certificate, self.key, password=no_password)
        except OSError as error:  # also ssl.SSLError
            names = ", ".join(str(file) for file in self._files())
            raise ConfigurationError(
                f"TLS: {names} cannot be used: {error}. Nothing was sent. Each must be a readable PEM file, and the "
                "key must belong to the certificate."
            ) from None
        context.set_alpn_protocols(["h2"])
        return context

    def credentials(self) -> grpc.ChannelCredentials:
        """Raises ConfigurationError if a file cannot be used."""
        self.context()
        ca, *pair = (Path(file).read_bytes() for file in self._files())
        certificate, key = pair or (None, None)
        return grpc.ssl_channel_credentials(ca, key, certificate)

    def version(self) -> object:
        """Changes when a file is replaced."""
        return version_of(self._files())

    def expires(self) -> datetime | None:
        """When the client's certificate expires; None if there is none, or it cannot be read now."""
        try:
            return None if self.certificate is None else expiry_in(Path(self.certificate).read_bytes())
        except OSError:
            return None

    def expired(self) -> datetime | None:
        """When the client's certificate has expired; None if it has not, or if that is not known."""
        return _past(self.expires())

    def _files(self) -> list[str | os.PathLike[str]]:
        return [file for file in (self.ca, self.certificate, self.key) if file is not None]


def diagnose(address: str, tls: CoordinatorTls | None) -> str | None:
    """What keeps ``HOST:PORT`` and this side from a connection, as far as encryption goes; None if nothing does, or if
    it cannot be said. Takes at most a few seconds.

    Raises ConfigurationError if a file of ``tls`` cannot be used.
    """
    host, _, port = address.rpartition(":")
    if host == "unix" or not port.isdigit():
        return None
    context = _trusting() if tls is None else tls.context()
    host = host.strip("[]")
    found = _try(host, int(port), context, tls)
    # a coordinator that stops hangs up, too: then the next attempt is refused
    return _try(host, int(port), context, tls) if tls is not None and found == _hung_up(tls) else found


def _try(host: str, port: int, context: ssl.SSLContext, tls: CoordinatorTls | None) -> str | None:
    try:
        with socket.create_connection((host, port), _HANDSHAKE_LIMIT_S) as plain:
            try:
                with context.wrap_socket(plain, server_hostname=host) as connection:
                    if tls is None:
                        return "it accepts only TLS, and this side does not use it (tls=, ONCEWARD_TLS_CA)"
                    # the client's certificate is judged after the handshake (TLS 1.3); gRPC then just hangs up
                    return None if connection.recv(1) else _hung_up(tls)
            except ssl.SSLCertVerificationError as error:
                reason = error.verify_message.strip().rstrip(".")
                at = _past(_expiry_at(host, port)) if error.verify_code == _HAS_EXPIRED else None
                return f"its certificate is not valid here: {reason}" + (_until(at) if at is not None else "")
            except ssl.SSLError as error:
                return None if tls is None else _failure(error)
    except OSError:
        pass
    return None


def _expiry_at(host: str, port: int) -> datetime | None:
    """When the certificate of a server expires, if that can be found out."""
    try:
        with (
            socket.create_connection((host, port), _HANDSHAKE_LIMIT_S) as plain,
            _trusting().wrap_socket(plain, server_hostname=host) as connection,
        ):
            return expiry_in(ssl.DER_cert_to_PEM_cert(connection.getpeercert(binary_form=True) or b"").encode())
    except OSError:
        return None


def _past(at: datetime | None) -> datetime | None:
    return at if at is not None and at <= datetime.now(UTC) else None


def _until(at: datetime) -> str:
    return f" (valid until {at:%Y-%m-%d %H:%M:%S} UTC); renewed files are read without a restart"


def _trusting() -> ssl.SSLContext:
    """A context for a connection that sends nothing."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


def _hung_up(tls: CoordinatorTls) -> str:
    if tls.certificate is None:
        return "it requires a certificate of the client, and none is given (tls=, ONCEWARD_TLS_CERT)"
    if (at := tls.expired()) is not None:
        return f"it refuses the client's certificate {tls.certificate}, which has expired{_until(at)}"
    return (
        f"it refuses the client's certificate {tls.certificate}, which has expired or is signed by an authority that "
        "the coordinator's --client-ca does not contain"
    )


def _failure(error: ssl.SSLError) -> str:
    reason = error.reason or str(error)
    if "WRONG_VERSION" in reason or "RECORD_LAYER" in reason:
        return "it does not use TLS, and this side requires it"
    return f"the handshake fails: {reason}"


def renewing(open_channel: Callable[[], grpc.Channel], version: Callable[[], object]) -> grpc.Channel:
    """Return a channel for stubs that is replaced before a call when ``version`` has changed: gRPC's client reads
    certificates only once. Calls in progress stay with the old channel. An unreadable new version is not used."""
    return cast(grpc.Channel, _Renewing(open_channel, version))


class _Renewing(StubChannel):
    def __init__(self, open_channel: Callable[[], grpc.Channel], version: Callable[[], object]) -> None:
        self._open, self._version = open_channel, version
        self._lock = Lock()
        self._seen, self._channel = version(), open_channel()
        self._old: grpc.Channel | None = None
        """Has the calls that were in progress at the last replacement."""

    def method(self, kind: str, *arguments: Any, **options: Any) -> "_Method":
        return _Method(lambda: getattr(self._current(), kind)(*arguments, **options))

    def close(self) -> None:
        with self._lock:
            for channel in (self._old, self._channel):
                if channel is not None:
                    channel.close()

    def _current(self) -> grpc.Channel:
        with self._lock:
            try:
                version = self._version()
                if version != self._seen:
                    channel = self._open()
                    if self._old is not None:
                        self._old.close()
                    self._old, self._channel, self._seen = self._channel, channel, version
            except (OSError, ConfigurationError):
                pass  # files in the middle of their replacement; the next call looks again
            return self._channel


class _Method:
    """Calls a method on the channel of the moment."""

    def __init__(self, now: Callable[[], Any]) -> None:
        self._now = now

    def __call__(self, *call: Any, **given: Any) -> Any:
        return self._now()(*call, **given)

    def with_call(self, *call: Any, **given: Any) -> Any:
        return self._now().with_call(*call, **given)
