"""Peers of a coordinator on loopback with TLS: certificates, tokens, a rights file."""

import asyncio
import ipaddress
import threading
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Self

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import NameOID

from onceward.client.tls import CoordinatorTls
from onceward.coordinator.service.documents import Checkers
from onceward.coordinator.service.observer import Observer
from onceward.coordinator.service.rights_file import RightsFile
from onceward.coordinator.service.server import CoordinatorServer, ServerOptions
from onceward.coordinator.service.systems import Systems
from onceward.coordinator.service.tls import ServerTls
from onceward.coordinator.store.store import Store
from onceward.wire.limits import MAX_CONCURRENT_RPCS

__all__ = ["HOST", "PeerFiles", "ServedCoordinator"]

HOST = "127.0.0.1"


class PeerFiles:
    """An authority, the coordinator's certificate, and those of clients, in one directory."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self._authority = trustme.CA()
        self.ca = directory / "ca.pem"
        self._authority.cert_pem.write_to_path(str(self.ca))
        own = self._authority.issue_cert(HOST)
        own.private_key_pem.write_to_path(str(directory / "server.key"))
        own.cert_chain_pems[0].write_to_path(str(directory / "server.pem"))
        self.rights = directory / "rights.toml"

    def server_tls(self, *, client_ca: bool = True) -> ServerTls:
        certificate, key = self.directory / "server.pem", self.directory / "server.key"
        return ServerTls(certificate=certificate, key=key, client_ca=self.ca if client_ca else None)

    def client_tls(self) -> CoordinatorTls:
        """Without a certificate of the client."""
        return CoordinatorTls(ca=self.ca)

    def issued_to(
        self,
        name: str,
        *,
        uris: Sequence[str] = (),
        dns: Sequence[str] = (),
        addresses: Sequence[str] = (),
        common_name: str = "client",
        password: str = "",
    ) -> CoordinatorTls:
        """Return the files of a peer whose certificate has these names. ``password``: of the key's file."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        authority = x509.load_pem_x509_certificate(self._authority.cert_pem.bytes())
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in uris]
        names += [x509.DNSName(one) for one in dns]
        names += [x509.IPAddress(ipaddress.ip_address(one)) for one in addresses]
        made = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)]))
            .issuer_name(authority.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), False)  # type: ignore[arg-type]
        )
        if names:
            made = made.add_extension(x509.SubjectAlternativeName(names), False)
        signing = load_pem_private_key(self._authority.private_key_pem.bytes(), None)
        signed = made.sign(signing, hashes.SHA256())  # type: ignore[arg-type]
        certificate, own = self.directory / f"{name}.pem", self.directory / f"{name}.key"
        certificate.write_bytes(signed.public_bytes(Encoding.PEM))
        locked: KeySerializationEncryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        own.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked))
        return CoordinatorTls(ca=self.ca, certificate=certificate, key=own)

    def grant(self, text: str) -> None:
        """Write the rights file, as a whole."""
        fresh = self.rights.with_suffix(".new")
        fresh.write_text(text)
        fresh.chmod(0o600)
        fresh.replace(self.rights)


class ServedCoordinator:
    """A coordinator in a thread of the test, on a port of loopback."""

    def __init__(
        self,
        store: Path,
        *,
        tls: ServerTls | None = None,
        rights: RightsFile | None = None,
        most: int = MAX_CONCURRENT_RPCS,
        reflection: bool = False,
        target: str = f"{HOST}:0",
        observer: Observer | None = None,
        systems: Systems | None = None,
    ) -> None:
        self._options = ServerOptions(
            tls=tls,
            rights=rights,
            reflection=reflection,
            max_concurrent_rpcs=most,
            observer=observer,
            systems=systems,
        )
        self._store = store
        self._target = target
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self.address = ""
        self.server: CoordinatorServer | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="the loop", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(60)
        assert self.address, "it did not start"
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None
        assert self._stop is not None
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        try:
            store = Store.open(f"sqlite:///{self._store}")
            self.server = CoordinatorServer(store, options=self._options, checkers=Checkers({}))
            (port,) = await self.server.start(self._target)
            self.address = self._target if self._target.startswith("unix:") else f"{HOST}:{port}"
        finally:
            self._ready.set()
        await self._stop.wait()
        await self.server.stop(0.5)
        store.close()
