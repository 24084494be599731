"""Directories for results, progress messages, and plots of results."""

import json
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.environments import python_environment
from benchmarks.errors import SetUpError

__all__ = ["RESULTS", "draw", "new_directory", "say", "write"]

RESULTS = Path(__file__).resolve().parent / "results"
_MATPLOTLIB = "matplotlib==3.11.2"


def say(text: str) -> None:
    """Print a progress message."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def new_directory(within: Path, kind: str) -> Path:
    """Create a directory for the results of one run of a benchmark."""
    place = within / f"{kind}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    place.mkdir(parents=True)
    return place


def write(results: dict[str, Any], place: Path) -> Path:
    """Write ``result.json``."""
    file = place / "result.json"
    file.write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    return file


def draw(results: dict[str, Any], place: Path) -> str:
    """Draw plots beside the result; return their names, or why there are none, which costs no figure."""
    try:
        say("drawing")
        python = python_environment("plots", [_MATPLOTLIB])
        script = str(Path(__file__).with_name("plots.py"))
        command = [str(python), script, str(write(results, place)), str(place)]
        subprocess.run(command, check=True, stderr=subprocess.PIPE, text=True)
    except SetUpError as error:
        return f"none: {error}"
    except subprocess.CalledProcessError as error:
        return f"none: {error.stderr.strip()[-600:]}"
    return ", ".join(sorted(picture.name for picture in place.glob("*.png")))
