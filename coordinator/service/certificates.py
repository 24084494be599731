"""When certificates expire."""

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from onceward.common.printable import log_fields, logger
from onceward.wire.pem import expiry_in

__all__ = ["ExpiredCertificates", "expiry_of"]

_log = logger("onceward.service")

_EVERY_S = 10.0
"""Minimum time between two looks, so that clients that come in vain do not fill the log."""


def expiry_of(file: Path) -> datetime | None:
    """Return when the first of the certificates in a PEM file expires. None if that cannot be read now, perhaps in the
    middle of a replacement (the service logs what it cannot use), or without the package ``cryptography``."""
    try:
        return expiry_in(file.read_bytes())
    except OSError:
        return None


class ExpiredCertificates:
    """Logs which of the files, by the options that name them, hold an expired certificate."""

    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files
        self._next = float("-inf")

    def look(self) -> None:
        """To be called for each new connection."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _EVERY_S
        for option, file in self._files.items():
            if (at := expiry_of(file)) is not None and at <= datetime.now(UTC):
                means = "new connections fail; renewed files are read without a restart"
                fields = {"event": "certificate_expired", "option": option, "file": file, "expired": at.isoformat()}
                _log.warning("%s", log_fields({**fields, "detail": means}))
