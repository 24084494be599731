"""Run the tests of a user's project."""

import os
import subprocess
import sys
from pathlib import Path

from onceward.dev.managed_process import OURS

LIMIT_S = 800.0


def run_tests(project: Path) -> "subprocess.CompletedProcess[str]":
    """Run pytest in the project's directory, in a process of its own with a broker and Spark of its own."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", "--rootdir", str(project), str(project)],
        cwd=project,
        env={**os.environ, "PYTHONPATH": OURS},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
