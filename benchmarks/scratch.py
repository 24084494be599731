"""A directory for brokers, stores and logs during a measurement."""

import contextlib
import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["scratch_directory"]

_PREFIX = "onceward-bench-"
_LOCK = "in-use"


@contextmanager
def scratch_directory(within: Path | None) -> Iterator[Path]:
    """Yield a directory that is removed at the end. ``within``: None for the system's temporary directory.

    It is locked meanwhile. Directories that killed benchmarks left there are removed first: a full topic takes
    gigabytes.
    """
    for left in Path(within or tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError), (left / _LOCK).open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_PREFIX, dir=within) as name:
        scratch = Path(name)
        with (scratch / f"{_LOCK}.new").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            (scratch / f"{_LOCK}.new").rename(scratch / _LOCK)  # not visible before it is locked
            yield scratch
