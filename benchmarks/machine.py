"""What the figures were measured on."""

import os
import platform
import sqlite3
import time
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

__all__ = ["describe_machine"]

_SYNCED = 100
_PACKAGES = ("confluent-kafka", "grpcio", "onceward", "protobuf", "pyarrow", "pyspark", "sqlalchemy")


def describe_machine(directory: Path) -> dict[str, Any]:
    """Machine, versions and load; `directory` is on the disk that is measured."""
    return {
        "at": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "cores": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
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


def _sync_ms(directory: Path) -> float:
    """How long this disk takes to confirm 4 KiB: what every decision waits for at least once."""
    took = []
    with (directory / "sync").open("wb", buffering=0) as file:
        for _ in range(_SYNCED):
            file.write(b"x" * 4096)
            begun = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append(time.perf_counter() - begun)
    return round(sorted(took)[_SYNCED // 2] * 1000, 2)
