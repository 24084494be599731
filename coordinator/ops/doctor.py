"""``onceward doctor``: check what this machine has of what jobs need. Changes nothing."""

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from onceward.coordinator.client.operators import OperatorClient
from onceward.coordinator.errors import OncewardError
from onceward.coordinator.jvm.archives import java_path
from onceward.coordinator.ops.tables import Column, Listing, print_json, print_listings, status

__all__ = ["Check", "run_doctor"]

_OLDEST_PYTHON = (3, 11)
_OLDEST_JAVA = 17
_SERVICE = ("grpcio", "protobuf", "SQLAlchemy", "typer", "rich")
_JOB = ("pyspark", "confluent-kafka", "kafka-python", "pyarrow", "pandas")


@dataclass(frozen=True, kw_only=True)
class Check:
    subject: str
    found: str
    ok: bool
    remedy: str = ""


def run_doctor(coordinator: str | None, *, as_json: bool) -> int:
    """Show all findings; return 0 when nothing is missing, else 1."""
    checks = [*_local(), *([_coordinator(coordinator)] if coordinator is not None else [])]
    if as_json:
        print_json(checks)
    else:
        shown = Listing("", "what", Column(name="found", text=True), Column(name="remedy", text=True))
        for check in checks:
            shown.add(status("ok" if check.ok else "error"), check.subject, check.found, check.remedy)
        print_listings([shown])
    return 0 if all(check.ok for check in checks) else 1


def _local() -> Iterator[Check]:
    wanted = ".".join(map(str, _OLDEST_PYTHON))
    found = ".".join(map(str, sys.version_info[:3]))
    good = sys.version_info >= _OLDEST_PYTHON
    yield Check(subject="Python", found=found, ok=good, remedy="" if good else f"install Python {wanted} or newer")
    yield _java()
    for packages, command in ((_SERVICE, "pip install onceward"), (_JOB, "pip install 'onceward[spark]'")):
        for package in packages:
            try:
                yield Check(subject=package, found=version(package), ok=True)
            except PackageNotFoundError:
                yield Check(subject=package, found="-", ok=False, remedy=command)


def _java() -> Check:
    remedy = f"install a Java of version {_OLDEST_JAVA} or newer; only jobs need it"
    java = java_path()
    if java is None:
        return Check(subject="Java", found="-", ok=False, remedy=remedy)
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
    except (OSError, subprocess.SubprocessError) as error:
        return Check(subject="Java", found=f"{java} does not run: {error}", ok=False, remedy=remedy)
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    good = match is not None and int(match[1]) >= _OLDEST_JAVA
    return Check(subject="Java", found=said.splitlines()[0] if said else java, ok=good, remedy="" if good else remedy)


def _coordinator(address: str) -> Check:
    try:
        with OperatorClient(address) as client:
            count = len(client.jobs())
    except OncewardError as error:
        return Check(subject=f"coordinator {address}", found=str(error), ok=False, remedy="start it: onceward serve")
    return Check(subject=f"coordinator {address}", found=f"answers, {count} jobs", ok=True)
