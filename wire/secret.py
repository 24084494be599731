"""A driver's secret and its fingerprint."""

import hashlib

__all__ = ["fingerprint"]

_DIGITS = 32  # 128 bits, as many as the secrets of our drivers have


def fingerprint(secret: str) -> str:
    """Return what the store keeps, listings show and claims name of a driver. It does not give the secret away, because
    a secret is random."""
    return hashlib.sha256(secret.encode()).hexdigest()[:_DIGITS]
