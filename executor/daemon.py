"""Spark's daemon of Python workers, started with the PySpark that is installed.

Spark puts its own archive of PySpark first on the path of Python workers. Python keeps no compiled code for an archive,
so each start of a daemon compiles all of PySpark: more than half of the time to the first task in Python. Where the
archive is that of the installed PySpark, the daemon leaves it out. ``spark.python.daemon.module`` names this module.
"""

import os
import site
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import PathFinder
from pathlib import Path
from types import SimpleNamespace
from typing import Any

__all__ = ["DAEMON", "can_start", "without_archives"]

DAEMON = "onceward.executor.daemon"


def without_archives(path: Sequence[str]) -> list[str]:
    """Return ``path`` without Spark's archives of PySpark and Py4J, if it then leads to the PySpark that they belong to
    and to an installed Py4J; else all of it."""
    rest = [entry for entry in path if not entry.endswith(("pyspark.zip", "-src.zip"))]
    installed = PathFinder.find_spec("pyspark", rest)
    if installed is None or installed.origin is None or PathFinder.find_spec("py4j", rest) is None:
        return list(path)
    theirs = Path(installed.origin).parent / "python" / "lib"
    left_out = [entry for entry in path if entry not in rest]
    return rest if all(Path(entry).parent == theirs for entry in left_out) else list(path)


def can_start(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether a Python that is started with these variables on this machine finds this module: not if only the path of
    this process leads to it."""
    if environment.get("PYSPARK_PYTHON", sys.executable) != sys.executable:
        return False
    given = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    installed = [*given, *site.getsitepackages(), site.getusersitepackages()]
    if PathFinder.find_spec("onceward", installed) is not None:
        return True
    editable = (finder for finder in sys.meta_path if getattr(finder, "__module__", "").startswith("__editable__"))
    return any(finder.find_spec("onceward", None) is not None for finder in editable)


def _unless_gone(say: Callable[..., None]) -> Callable[..., None]:
    """Return ``say``, silent about a JVM that has closed the connection. It does so at the end of each job, and a task
    that loses its JVM is reported by Spark."""

    def said(*words: object, **how: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            say(*words, **how)

    return said


if __name__ == "__main__":
    sys.path[:] = without_archives(sys.path)
    from pyspark import daemon

    daemon.print = _unless_gone(print)  # type: ignore[attr-defined]
    daemon.traceback = SimpleNamespace(  # type: ignore[attr-defined, assignment]
        format_exc=traceback.format_exc, print_exc=_unless_gone(traceback.print_exc)
    )
    daemon.manager()
