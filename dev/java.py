"""Finds a Java that can run the broker and fetch jars (17 or newer, as for Spark)."""

import os
import re
import subprocess
import sys
from functools import cache

from onceward.common.jvm.archives import java_path
from onceward.dev.errors import LocalServerError

__all__ = ["OLDEST_JAVA", "find_java"]

OLDEST_JAVA = 17


def _install_command() -> str:
    if sys.platform == "darwin":
        return "brew install openjdk@17"
    return "sudo apt-get install -y openjdk-17-jre-headless"


@cache
def find_java() -> str:
    """Return the path of the ``java`` program: ``JAVA_HOME`` first, as in Spark, then ``PATH``.

    Raises `LocalServerError` if there is none, if it does not run, or if it is older than 17.
    """
    home, java = os.environ.get("JAVA_HOME"), java_path()
    cure = f"Install one with: {_install_command()}"
    if java is None:
        raise LocalServerError(f"A local server needs Java {OLDEST_JAVA} or newer and there is none on PATH. {cure}")
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
    except (OSError, subprocess.SubprocessError) as error:
        where = "JAVA_HOME points to" if home else "PATH leads to"
        raise LocalServerError(
            f"A local server needs Java {OLDEST_JAVA} or newer and {where} {java}, which does not run: {error}. {cure}"
        ) from error
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    if found is None or int(found[1]) < OLDEST_JAVA:
        version = found[1] if found else "of unknown version"
        raise LocalServerError(f"A local server needs Java {OLDEST_JAVA} or newer and {java} is Java {version}. {cure}")
    return java
