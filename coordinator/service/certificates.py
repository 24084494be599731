"""When certificates expire."""

from datetime import datetime
from pathlib import Path

__all__ = ["expiry_of"]


def expiry_of(file: Path) -> datetime | None:
    """Return when the first of the certificates in a PEM file expires. None if that cannot be read now, perhaps in the
    middle of a replacement (the service logs what it cannot use), or without the package ``cryptography``."""
    try:
        from cryptography import x509

        found = x509.load_pem_x509_certificates(file.read_bytes())
    except (ImportError, OSError, ValueError):
        return None
    return min(one.not_valid_after_utc for one in found)
