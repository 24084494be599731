"""TLS of the coordinator: its certificate, and the authorities whose clients it accepts."""

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import grpc

from onceward.common.errors import ConfigurationError
from onceward.common.printable import log_fields, logger
from onceward.coordinator.service.certificates import ExpiredCertificates
from onceward.wire.pem import no_password, version_of

__all__ = ["ServerTls"]

_log = logger("onceward.service")


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerTls:
    """PEM files. They are read again for each new connection when they have changed."""

    certificate: Path
    """With intermediate certificates."""
    key: Path
    """Without a password."""
    client_ca: Path | None
    """Only clients with a certificate of one of these authorities are accepted; None accepts every client."""
    connection_age_s: float = 3600.0
    """A connection lives no longer, so that a certificate that was replaced or has expired is not used for ever."""

    @property
    def authenticates(self) -> bool:
        return self.client_ca is not None

    @property
    def certificates(self) -> Mapping[str, Path]:
        """The files of certificates, by the option that names each."""
        files = {"tls-cert": self.certificate, "client-ca": self.client_ca}
        return {option: file for option, file in files.items() if file is not None}

    def check(self) -> None:
        """Raise ConfigurationError if a file cannot be used."""
        try:
            self.context()
        except OSError as error:  # also ssl.SSLError
            raise ConfigurationError(
                f"TLS: {', '.join(map(str, self._files()))} cannot be used: {error}. Nothing was started. Each must be "
                "a readable PEM file, and the key must belong to the certificate."
            ) from None

    def credentials(self) -> grpc.ServerCredentials:
        """Raises ConfigurationError if a file cannot be used."""
        self.check()
        seen, expired = self._version(), ExpiredCertificates(self.certificates)

        def renewed() -> grpc.ServerCertificateConfiguration | None:
            nonlocal seen
            expired.look()
            try:
                version = self._version()
                if version == seen:
                    return None
                self.context()
                configuration = self._configuration()
            except OSError as error:
                # perhaps in the middle of a replacement; the next connection looks again
                detail = f"{error}; old ones stay in use"
                _log.warning("%s", log_fields({"event": "certificates_not_read", "detail": detail}))
                return None
            seen = version
            _log.info("%s", log_fields({"event": "certificates_renewed", "certificate": self.certificate}))
            return configuration

        return grpc.dynamic_ssl_server_credentials(
            self._configuration(),
            renewed,  # type: ignore[arg-type]  # None is allowed, and means no change
            require_client_authentication=self.authenticates,
        )

    def arguments(self) -> list[tuple[str, int]]:
        """Channel arguments of the server."""
        return [
            ("grpc.max_connection_age_ms", round(self.connection_age_s * 1000)),
            # a driver's stream of instructions outlives nothing: it is opened again within milliseconds
            ("grpc.max_connection_age_grace_ms", 10_000),
        ]

    def context(self) -> ssl.SSLContext:
        """The same files for the standard library. Raises OSError."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key, password=no_password)
        if self.client_ca is not None:
            context.load_verify_locations(self.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _configuration(self) -> grpc.ServerCertificateConfiguration:
        pair = (self.key.read_bytes(), self.certificate.read_bytes())
        authorities = None if self.client_ca is None else self.client_ca.read_bytes()
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=authorities)

    def _version(self) -> object:
        return version_of(self._files())

    def _files(self) -> list[Path]:
        return [file for file in (self.certificate, self.key, self.client_ca) if file is not None]
