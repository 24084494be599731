"""The broker's published jars: fetched once into the user's cache, then used offline.

The fetch runs Ivy, which PySpark ships, with Ivy's default repository. `jars.txt` names every jar with its checksum and
size, so nothing is resolved at run time: no descriptor is read (which alone takes half a minute), no version can drift,
and a jar that is not byte for byte the expected one is refused.
"""

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from xml.sax.saxutils import quoteattr

from onceward.coordinator.dev.errors import LocalKafkaError
from onceward.coordinator.dev.kafka.java import find_java
from onceward.coordinator.jvm.archives import fingerprint

__all__ = ["Jar", "Progress", "broker_jars", "cache_directory", "class_archive", "manifest"]

Progress = Callable[[int, int, int], None]
"""Called with (jars so far, jars in all, bytes so far)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Jar:
    """One line of the manifest. `size` is in bytes, `sha256` in hex."""

    group: str
    name: str
    version: str
    size: int
    sha256: str

    @property
    def file_name(self) -> str:
        return f"{self.name}-{self.version}.jar"


@cache
def _manifest_text() -> str:
    return files("onceward.coordinator.dev.kafka").joinpath("jars.txt").read_text(encoding="ascii")


@cache
def manifest() -> tuple[Jar, ...]:
    """Return all jars that the broker needs, in class path order."""
    jars = []
    for line in _manifest_text().splitlines():
        if line and not line.startswith("#"):
            sha256, size, coordinates = line.split()
            group, name, version = coordinates.split(":")
            jars.append(Jar(group=group, name=name, version=version, size=int(size), sha256=sha256))
    return tuple(jars)


def cache_directory() -> Path:
    """Return ``ONCEWARD_CACHE_DIR``, else ``XDG_CACHE_HOME``/onceward, else ``~/.cache/onceward``. Absolute."""
    if own := os.environ.get("ONCEWARD_CACHE_DIR"):
        return Path(own).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "onceward"


def _fault(directory: Path) -> str | None:
    """Describe a fault of the jars in a directory, or None; reads all 44 MB, 0.15 s."""
    for jar in manifest():
        path = directory / jar.file_name
        try:
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != jar.sha256:
                    return f"{jar.file_name} is not the published file (its SHA-256 differs)"
        except OSError as error:
            return f"{jar.file_name} cannot be read ({error.strerror})"
    return None


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Allow one fetch at a time on this machine; the lock ends with its holder, however that ends."""
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def broker_jars(progress: Progress | None = None) -> Path:
    """Return the directory with exactly the jars of the manifest; fetches them first if necessary.

    Raises `LocalKafkaError` if they cannot be fetched or are not the published ones.
    """
    version = hashlib.sha256(_manifest_text().encode()).hexdigest()[:12]
    directory = cache_directory() / "kafka" / version
    return _fetched(directory, progress)


def class_archive(jars: Path) -> Path:
    """Return where the archive of the broker's classes is, for these jars and this Java, whether it was written or
    not."""
    return jars.parent / f"{jars.name}-{fingerprint(jars.glob('*.jar'))}.jsa"


@cache
def _checked(directory: Path) -> bool:
    return _fault(directory) is None


def _fetched(directory: Path, progress: Progress | None) -> Path:
    if directory.is_dir() and _checked(directory):
        return directory
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with _locked(directory.parent / "fetch.lock"):
            _checked.cache_clear()
            if not (directory.is_dir() and _checked(directory)):  # else another process fetched meanwhile
                _checked.cache_clear()
                _fetch(directory, progress)
    except OSError as error:
        raise LocalKafkaError(
            f"The broker's jars cannot be kept in {directory.parent} ({error.strerror}). "
            "Name a directory that can be written in ONCEWARD_CACHE_DIR."
        ) from error
    return directory


def _fetch(directory: Path, progress: Progress | None) -> None:
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=directory.parent) as work_name:
        work = Path(work_name)
        _run_ivy(work, progress)
        jars = work / "jars"
        if fault := _fault(jars):
            raise LocalKafkaError(f"Fetched the broker's jars, but {fault}; nothing of them is used. Try again.")
        shutil.rmtree(directory, ignore_errors=True)  # an earlier one that failed its check
        jars.rename(directory)


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    places = list(spec.submodule_search_locations or ()) if spec else []
    for place in places:
        for jar in sorted(Path(place, "jars").glob("ivy-*.jar")):
            return jar
    raise LocalKafkaError(
        "The broker's jars are fetched with the Ivy that PySpark ships, and PySpark is not installed. "
        "Install it with: pip install 'onceward[spark]'"
    )


def _run_ivy(work: Path, progress: Progress | None) -> None:
    """Fetch into ``work/jars``. Ivy prints a line before and after each download."""
    settings, module, jars = work / "ivysettings.xml", work / "ivy.xml", work / "jars"
    settings.write_text(
        "<ivysettings><settings defaultResolver='published'/>"
        "<property name='ivy.checksums' value=''/>"  # our checksums are stronger and already here
        f"<caches defaultCacheDir={quoteattr(str(work / 'ivy'))}/>"
        "<resolvers><ibiblio name='published' m2compatible='true' usepoms='false'/></resolvers></ivysettings>"
    )
    wanted = "".join(
        f"<dependency org='{jar.group}' name='{jar.name}' rev='{jar.version}' conf='default->*' transitive='false'/>"
        for jar in manifest()
    )
    module.write_text(
        "<ivy-module version='2.0'><info organisation='onceward' module='local-kafka'/>"
        f"<configurations><conf name='default'/></configurations><dependencies>{wanted}</dependencies></ivy-module>"
    )
    pattern = f"{jars}/[artifact]-[revision].[ext]"
    command = [find_java(), "-jar", str(_ivy_jar())]
    command += ["-settings", str(settings), "-ivy", str(module), "-retrieve", pattern]
    sizes = {f"{jar.group}#{jar.name};{jar.version}": jar.size for jar in manifest()}
    count = fetched = 0
    said: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as ivy:
        assert ivy.stdout is not None
        for line in ivy.stdout:
            said.append(line.strip())
            if done := re.search(r"\[SUCCESSFUL \] (\S+)!", line):
                count, fetched = count + 1, fetched + sizes.get(done[1], 0)
                if progress:
                    progress(count, len(sizes), fetched)
    if ivy.returncode != 0 or not jars.is_dir():
        raise LocalKafkaError(
            f"The broker's jars could not be fetched ({count} of {len(sizes)} arrived; Ivy: {_reason(said)}). "
            "Check the network and the proxy settings of Java, then try again."
        )


def _reason(said: list[str]) -> str:
    """Return the most informative line of Ivy's long output."""
    for clue in ("Exception", "not found", "ERROR", "WARN"):
        for line in said:
            if clue in line:
                return line.strip(":").strip()
    return "no reason given"
