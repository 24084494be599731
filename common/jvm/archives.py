"""Java's program, and archives of a JVM's classes (class data sharing, JEP 350).

A JVM that starts from an archive maps its classes instead of loading and verifying them. It ignores an archive of
another Java or of other jars, but prints a warning, so the name of an archive says for which of them it was written. It
crashes on a truncated archive, so an archive gets its name only once it is whole.
"""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["archive_option", "archive_written", "fingerprint", "java_path", "record_options"]


def java_path() -> str | None:
    """The ``java`` program that Spark would run: ``JAVA_HOME`` first, then ``PATH``."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home, "bin", "java")) if home else shutil.which("java")


def fingerprint(jars: Iterable[Path]) -> str:
    """Digest of everything that an archive depends on: Java and the jars on the class path.

    Raises OSError if a file is missing or there is no Java.
    """
    java = java_path()
    if java is None:
        raise FileNotFoundError("no Java")
    digest = hashlib.sha256()
    for file in (Path(java).resolve(), *sorted(jars)):
        state = file.stat()
        digest.update(f"{file} {state.st_size} {state.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:12]


def archive_option(archive: Path) -> str:
    """The JVM's option for a start from an archive. A JVM ignores an archive that does not exist."""
    return f"-XX:SharedArchiveFile={archive}"


def record_options(archive: Path) -> list[str]:
    """The JVM's options for an archive of all classes that it has loaded when it ends."""
    # else it prints a line for each class that no archive can hold
    return [f"-XX:ArchiveClassesAtExit={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]


@contextmanager
def archive_written(archive: Path) -> Iterator[Path]:
    """Yield the path at which a JVM shall write the archive; it gets its name after that. Raises OSError if no archive
    was written or it cannot be kept there."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="classes-", dir=archive.parent) as directory:
        recorded = Path(directory, archive.name)
        yield recorded
        recorded.replace(archive)
