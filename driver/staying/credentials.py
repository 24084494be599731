"""The key and the certificate of a driver for one group of its staying tasks, and their secret. Runs on the driver."""

import secrets
import ssl
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from onceward.executor.link import SECRET_BYTES, TaskCredentials

__all__ = ["new_credentials"]


def new_credentials() -> tuple[ssl.SSLContext, TaskCredentials]:
    """Return what the driver serves one group with, and what its tasks need.

    The tasks trust this certificate alone, for as long as the group lives: it needs no authority, and its name and
    dates say nothing.
    """
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "onceward driver")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime(2000, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(9999, 12, 31, tzinfo=UTC))
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(serialization.Encoding.PEM)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.num_tickets = 0  # no connection is resumed
    # ssl reads keys from files only: what lies there for a moment is encrypted
    password = secrets.token_bytes(32).hex().encode()
    encrypted = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(password),
    )
    with tempfile.TemporaryDirectory(prefix="onceward-") as directory:
        file = Path(directory, "driver.pem")
        file.write_bytes(encrypted + pem)
        context.load_cert_chain(file, password=password)
    return context, TaskCredentials(certificate=pem.decode(), secret=secrets.token_bytes(SECRET_BYTES))
