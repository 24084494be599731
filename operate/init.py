"""``onceward init``: begin a project of one's own. Its files are in ``project/``, with ``.txt`` behind their names."""

import errno
import json
import shlex
import tempfile
from importlib.metadata import distribution, version
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template
from urllib.parse import unquote, urlsplit

from onceward.common.errors import ConfigurationError
from onceward.operate.prompts import print_result

__all__ = ["FILES", "make_project"]

FILES = (
    *("job.py", "settings.toml", "conftest.py", "tests/test_job.py", "pyproject.toml"),
    *("requirements.txt", "requirements-test.txt", "Dockerfile", "README.md", ".gitignore"),
)


def make_project(directory: Path) -> None:
    """Write a project to a new or empty directory, and print what to do next. The directory gets all files or none.
    Raises ConfigurationError."""
    target = directory.resolve()
    try:
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise _not_empty(directory)
        with tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as beside:
            _write(Path(beside) / "project")
            (Path(beside) / "project").rename(target)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR) and target.exists():
            raise _not_empty(directory) from None  # a file came in between
        raise ConfigurationError(
            f"{directory} cannot be created: {error.strerror}. No project was made. Name a directory whose parent "
            "exists and where you may write."
        ) from None
    print_result(
        f"{shlex.join(['cd', str(directory)])}{_installing()}\n"
        "pytest          # a broker and Spark on this machine; needs Java 17\n"
        "python job.py   # on the servers and topics of settings.toml"
    )


def _installing() -> str:
    """What installs the requirements of the tests, from where this Onceward came from; empty if they are there."""
    if all(map(find_spec, ("onceward.dev", "pyspark", "pytest"))):
        return ""
    words = ["pip", "install", "-r", "requirements-test.txt"]
    installed_from = distribution("onceward").read_text("direct_url.json")
    if installed_from is not None:  # no package index has it
        found = json.loads(installed_from)
        clone = unquote(urlsplit(found["url"]).path) if "dir_info" in found else "CLONE"
        words.insert(2, f"{clone}/dev")
    return f" && {shlex.join(words)}"


def _write(project: Path) -> None:
    templates, known = files(__package__) / "project", {"version": version("onceward")}
    for name in FILES:
        file = project / name
        file.parent.mkdir(parents=True, exist_ok=True)
        template = templates / f"{file.name.removeprefix('.')}.txt"
        file.write_text(Template(template.read_text(encoding="utf-8")).substitute(known), encoding="utf-8")


def _not_empty(directory: Path) -> ConfigurationError:
    return ConfigurationError(
        f"{directory} exists and is not an empty directory. No project was made and nothing there was changed. Name a "
        "new directory."
    )
