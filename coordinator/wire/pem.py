"""Files of TLS, for both sides."""

import os
from collections.abc import Iterable

__all__ = ["no_password", "version_of"]


def version_of(files: Iterable[str | os.PathLike[str]]) -> object:
    """Return what changes when a file is replaced. Raises OSError."""
    return [(state.st_ino, state.st_mtime_ns) for state in map(os.stat, files)]


def no_password() -> str:
    """Raise OSError: without a callback, OpenSSL would ask for a key's password at the terminal."""
    raise OSError("the key has a password")
