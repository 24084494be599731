"""The machine and versions of a measurement."""

import os
import platform
import re
import sqlite3
import subprocess
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from onceward.dev.errors import LocalServerError
from onceward.dev.java import find_java
from onceward.dev.kafka.jars import jar_list

__all__ = ["describe_machine"]

_SYNCED = 100
_PACKAGES = ("confluent-kafka", "grpcio", "onceward", "protobuf", "pyarrow", "pyspark", "sqlalchemy")


def describe_machine(directory: Path) -> dict[str, Any]:
    """Return machine, versions and load; `directory` is on the measured disk."""
    return {
        "at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "java": _java(),
        "kafka": next(jar.version for jar in jar_list().jars if jar.name == "kafka-clients"),
        "commit": _commit(),
        **{name: version(name) for name in _PACKAGES},
        "disk_sync_median_ms": _sync_ms(directory),
        "load_average": [round(load, 1) for load in os.getloadavg()],
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    names = [
        line.split(":", 1)[1].strip() for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
    ]
    return names[0] if names else platform.processor() or platform.machine()


def _java() -> str:
    """Return the version of the Java that runs broker, Spark and peers."""
    try:
        said = subprocess.run([find_java(), "-version"], capture_output=True, text=True, check=True).stderr
    except (LocalServerError, OSError, subprocess.SubprocessError) as error:
        return f"none: {error}"
    found = re.search(r'version "([^"]+)"', said)
    return found[1] if found else said.strip()


def _commit() -> str:
    """Return the commit of the measured code, which the version alone does not give; "-dirty" if files differ."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _sync_ms(directory: Path) -> float:
    """Return the median time in which this disk confirms 4 KiB; every decision waits for that at least once."""
    took = []
    with (directory / "sync").open("wb", buffering=0) as file:
        for _ in range(_SYNCED):
            file.write(b"x" * 4096)
            begun = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - begun)
    return round(sorted(took)[_SYNCED // 2] * 1000, 2)
