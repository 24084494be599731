"""Dependencies of the peers, set up once in the user's cache: Python environments, jars, compiled programs.

Each is in a directory whose name is derived from its inputs, so a new version gets a new directory, and an incomplete
one is rebuilt. Uses only ordinary clients: pip, and the Ivy that PySpark ships.
"""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.sax.saxutils import quoteattr

from benchmarks.errors import SetUpError
from onceward.dev.errors import LocalServerError
from onceward.dev.jars import cache_directory
from onceward.dev.java import find_java

__all__ = ["compiled", "jars", "python_environment"]

_LIMIT_S = 1_800.0


def python_environment(name: str, requirements: Sequence[str]) -> Path:
    """Return the Python of an environment with exactly `requirements` (``name==version``) and their dependencies.

    Raises SetUpError with pip's output. The first time takes minutes.
    """

    def make(directory: Path) -> None:
        _run(name, [sys.executable, "-m", "venv", str(directory)])
        python = str(directory / "bin" / "python")
        _run(name, [python, "-m", "pip", "install", "--no-input", "--disable-pip-version-check", *requirements])

    found = f"{sys.version_info.major}.{sys.version_info.minor}"
    return _made(name, [found, *requirements], make) / "bin" / "python"


def jars(name: str, wanted: dict[str, str]) -> list[Path]:
    """Return the jars with the Maven coordinates ``group:name:version``, each with its SHA-256; no dependencies.

    Raises SetUpError if one cannot be fetched or is not the published file.
    """

    def make(directory: Path) -> None:
        directory.mkdir()
        _ivy(name, directory, list(wanted))
        for coordinates, sha256 in wanted.items():
            file = directory / _file_name(coordinates)
            with file.open("rb") as opened:
                if hashlib.file_digest(opened, "sha256").hexdigest() != sha256:
                    raise SetUpError(f"{name}: {file.name} is not the published file (its SHA-256 differs).")

    directory = _made(name, [part for pair in wanted.items() for part in pair], make)
    return [directory / _file_name(coordinates) for coordinates in wanted]


def compiled(name: str, source: Path, command: Callable[[Path], Sequence[str]]) -> Path:
    """Return the directory into which `source` was compiled with the command that `command` returns for it.

    Raises SetUpError with the compiler's output.
    """

    def make(directory: Path) -> None:
        directory.mkdir()
        _run(name, command(directory))

    return _made(name, [source.read_text(encoding="utf-8"), *command(Path("out"))], make)


def _made(name: str, parts: Sequence[str], make: Callable[[Path], None]) -> Path:
    """Return the directory for `parts`; `make` fills it first unless that was done before."""
    root = cache_directory() / "bench"
    directory = root / f"{name}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:12]}"
    stamp = directory / "made"
    try:
        root.mkdir(parents=True, exist_ok=True)
        with (root / f"{name}.lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not stamp.exists():
                shutil.rmtree(directory, ignore_errors=True)
                make(directory)
                stamp.touch()
    except OSError as error:
        raise SetUpError(f"{name}: {directory} cannot be made: {error}.") from error
    return directory


def _run(name: str, command: Sequence[str]) -> None:
    try:
        subprocess.run(
            command, check=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=_LIMIT_S
        )
    except subprocess.CalledProcessError as error:
        said = [line.strip() for line in str(error.stdout).splitlines() if line.strip()]
        raise SetUpError(f"{name}: {Path(command[0]).name} failed: {' / '.join(said[-3:])[-600:]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SetUpError(f"{name}: {error}") from error


def _file_name(coordinates: str) -> str:
    _, name, version = coordinates.split(":")
    return f"{name}-{version}.jar"


def _ivy(name: str, directory: Path, wanted: Sequence[str]) -> None:
    """Fetch with Ivy's default repository."""
    spec = importlib.util.find_spec("pyspark")
    places = list(spec.submodule_search_locations or ()) if spec else []
    ivy = [jar for place in places for jar in sorted(Path(place, "jars").glob("ivy-*.jar"))]
    if not ivy:
        raise SetUpError(f"{name}: jars are fetched with the Ivy that PySpark ships, and it is not there.")
    try:
        java = find_java()
    except LocalServerError as error:
        raise SetUpError(f"{name}: {error}") from error
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=directory.parent) as scratch:
        work = Path(scratch)
        (work / "settings.xml").write_text(
            "<ivysettings><settings defaultResolver='published'/><property name='ivy.checksums' value=''/>"
            f"<caches defaultCacheDir={quoteattr(str(work / 'ivy'))}/><resolvers>"
            "<ibiblio name='published' m2compatible='true' usepoms='false'/></resolvers></ivysettings>"
        )
        lines = []
        for coordinates in wanted:
            group, artifact, version = map(quoteattr, coordinates.split(":"))
            lines.append(
                f"<dependency org={group} name={artifact} rev={version} conf='default->*' transitive='false'/>"
            )
        (work / "ivy.xml").write_text(
            "<ivy-module version='2.0'><info organisation='onceward' module='bench'/><configurations>"
            f"<conf name='default'/></configurations><dependencies>{''.join(lines)}</dependencies></ivy-module>"
        )
        given = ["-settings", str(work / "settings.xml"), "-ivy", str(work / "ivy.xml")]
        retrieved = f"{directory}{os.sep}[artifact]-[revision].[ext]"
        _run(name, [java, "-jar", str(ivy[0]), *given, "-retrieve", retrieved])
