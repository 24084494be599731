"""The published jars of a local server: fetched once into the user's cache, then used offline.

The fetch runs Ivy, which PySpark ships, with Ivy's default repository. A list beside the server's code names every jar
with its checksum and size, so nothing is resolved at run time: no descriptor is read (which alone takes half a minute
for a broker), no version can drift, and a jar that is not byte for byte the expected one is refused.
"""

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO
from xml.sax.saxutils import quoteattr

from onceward.dev.errors import LocalServerError
from onceward.dev.java import find_java

__all__ = ["Jar", "JarList", "Progress", "cache_directory", "fetch_progress", "ivy_jar"]

Progress = Callable[[int, int, int], None]
"""Called with (jars so far, jars in all, bytes so far)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Jar:
    """One line of a list. `size` is in bytes, `sha256` in hex; `classifier` is empty for most."""

    group: str
    name: str
    version: str
    classifier: str
    size: int
    sha256: str

    @property
    def file_name(self) -> str:
        return "-".join(filter(None, (self.name, self.version, self.classifier))) + ".jar"


def cache_directory() -> Path:
    """Return ``ONCEWARD_CACHE_DIR``, else ``XDG_CACHE_HOME``/onceward, else ``~/.cache/onceward``. Absolute."""
    if own := os.environ.get("ONCEWARD_CACHE_DIR"):
        return Path(own).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser().absolute() / "onceward"


def fetch_progress(whose: str, out: TextIO | None = None) -> Progress:
    """Return a display of the fetch of jars: one live line on a terminal, else a line for every tenth."""
    target = out or sys.stderr

    def show(jars: int, of: int, size: int) -> None:
        line = f"fetching {whose} jars: {jars} of {of}, {size / 1e6:.1f} MB"
        if target.isatty():
            print(f"\r{line}", end="\n" if jars == of else "", file=target, flush=True)
        elif jars % 10 == 0 or jars == of:
            print(line, file=target, flush=True)

    return show


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Allow one fetch at a time on this machine; the lock ends with its holder, however that ends."""
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class JarList:
    """The jars of one server, in a directory of the cache that holds exactly these."""

    def __init__(self, whose: str, place: str, listed: str) -> None:
        """``whose``: for messages, as in "the broker's". ``place``: the server's directory in the cache. ``listed``:
        lines of checksum, bytes and ``group:name:version`` or ``group:name:version:classifier``, in class path
        order."""
        self.whose = whose
        self.jars = tuple(_jars(listed))
        self.version = hashlib.sha256(listed.encode()).hexdigest()[:12]
        """Another one for every other list."""
        self._place = place
        self._whole: set[Path] = set()

    def directory(self, progress: Progress | None = None) -> Path:
        """Return the directory with exactly the listed jars; fetches them first if necessary.

        Raises `LocalServerError` if they cannot be fetched or are not the published ones.
        """
        directory = cache_directory() / self._place / self.version
        if self._is_whole(directory):
            return directory
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            with _locked(directory.parent / "fetch.lock"):
                if not self._is_whole(directory):  # else another process fetched meanwhile
                    self._fetch(directory, progress)
        except OSError as error:
            raise LocalServerError(
                f"{self.whose.capitalize()} jars cannot be kept in {directory.parent} ({error.strerror}). "
                "Name a directory that can be written in ONCEWARD_CACHE_DIR."
            ) from error
        return directory

    def _is_whole(self, directory: Path) -> bool:
        if directory not in self._whole and directory.is_dir() and self._fault(directory) is None:
            self._whole.add(directory)
        return directory in self._whole

    def _fault(self, directory: Path) -> str | None:
        """Describe a fault of the jars in a directory, or None; reads all of them, a broker's 44 MB in 0.15 s."""
        for jar in self.jars:
            path = directory / jar.file_name
            try:
                with path.open("rb") as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != jar.sha256:
                        return f"{jar.file_name} is not the published file (its SHA-256 differs)"
            except OSError as error:
                return f"{jar.file_name} cannot be read ({error.strerror})"
        return None

    def _fetch(self, directory: Path, progress: Progress | None) -> None:
        with tempfile.TemporaryDirectory(prefix="fetch-", dir=directory.parent) as work_name:
            work = Path(work_name)
            self._run_ivy(work, progress)
            jars = work / "jars"
            if fault := self._fault(jars):
                raise LocalServerError(f"Fetched {self.whose} jars, but {fault}; nothing of them is used. Try again.")
            shutil.rmtree(directory, ignore_errors=True)  # an earlier one that failed its check
            jars.rename(directory)

    def _run_ivy(self, work: Path, progress: Progress | None) -> None:
        """Fetch into ``work/jars``. Ivy prints a line before and after each download."""
        settings, module, jars = work / "ivysettings.xml", work / "ivy.xml", work / "jars"
        settings.write_text(
            "<ivysettings><settings defaultResolver='published'/>"
            "<property name='ivy.checksums' value=''/>"  # our checksums are stronger and already here
            f"<caches defaultCacheDir={quoteattr(str(work / 'ivy'))}/>"
            "<resolvers><ibiblio name='published' m2compatible='true' usepoms='false'/></resolvers></ivysettings>"
        )
        wanted = "".join(
            f"<dependency org='{jar.group}' name='{jar.name}' rev='{jar.version}' conf='default->*'"
            f" transitive='false'><artifact name='{jar.name}' type='jar' ext='jar' {_classified(jar)}/></dependency>"
            for jar in self.jars
        )
        module.write_text(
            "<ivy-module version='2.0' xmlns:m='http://ant.apache.org/ivy/maven'>"
            "<info organisation='onceward' module='local-server'/>"
            f"<configurations><conf name='default'/></configurations><dependencies>{wanted}</dependencies></ivy-module>"
        )
        pattern = f"{jars}/[artifact]-[revision](-[classifier]).[ext]"
        command = [find_java(), "-jar", str(ivy_jar(self.whose))]
        command += ["-settings", str(settings), "-ivy", str(module), "-retrieve", pattern]
        sizes = {f"{jar.group}#{jar.name};{jar.version}": jar.size for jar in self.jars}
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
            raise LocalServerError(
                f"{self.whose.capitalize()} jars could not be fetched ({count} of {len(sizes)} arrived; "
                f"Ivy: {_reason(said)}). Check the network and the proxy settings of Java, then try again."
            )


def _jars(listed: str) -> Iterator[Jar]:
    for line in listed.splitlines():
        if line and not line.startswith("#"):
            sha256, size, coordinates = line.split()
            group, name, version, *classifier = coordinates.split(":")
            yield Jar(
                group=group,
                name=name,
                version=version,
                classifier="".join(classifier),
                size=int(size),
                sha256=sha256,
            )


def _classified(jar: Jar) -> str:
    return f"m:classifier='{jar.classifier}'" if jar.classifier else ""


def ivy_jar(whose: str) -> Path:
    """Return the Ivy that PySpark ships. Raises `LocalServerError`, which says ``whose`` jars it would fetch."""
    spec = importlib.util.find_spec("pyspark")
    places = list(spec.submodule_search_locations or ()) if spec else []
    for place in places:
        for jar in sorted(Path(place, "jars").glob("ivy-*.jar")):
            return jar
    raise LocalServerError(
        f"{whose.capitalize()} jars are fetched with the Ivy that PySpark ships, and PySpark is not installed. "
        "Install it with: pip install 'onceward[spark]'"
    )


def _reason(said: list[str]) -> str:
    """Return the most informative line of Ivy's long output."""
    for clue in ("Exception", "not found", "ERROR", "WARN"):
        for line in said:
            if clue in line:
                return line.strip(":").strip()
    return "no reason given"
