"""Files of TLS, for both sides."""

import os
from collections.abc import Iterable
from datetime import datetime

__all__ = ["expiry_in", "no_password", "version_of"]


def version_of(files: Iterable[str | os.PathLike[str]]) -> object:
    """Return what changes when a file is replaced. Raises OSError."""
    return [(state.st_ino, state.st_mtime_ns) for state in map(os.stat, files)]


def no_password() -> str:
    """Raise OSError: without a callback, OpenSSL would ask for a key's password at the terminal."""
    raise OSError("the key has a password")


def expiry_in(certificates: bytes) -> datetime | None:
    """Return when the first of the certificates, in PEM, expires. None for no certificates, or without the package
    ``cryptography``."""
    try:
        from cryptography import x509

        found = x509.load_pem_x509_certificates(certificates)
    except (ImportError, ValueError):
        return None
    return min(one.not_valid_after_utc for one in found)
