"""What this machine has: Python, Java, packages that load, a clock that is set, and a disk for the store."""

import ctypes
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from importlib.metadata import PackageNotFoundError, files, requires, version
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from onceward.common.jvm.archives import java_path
from onceward.common.readable import size
from onceward.coordinator.store.errors import StoreUnusableError
from onceward.coordinator.store.filesystem import refuse_network_filesystem
from onceward.coordinator.store.private import require_private_directory
from onceward.operate.doctor.check import Check, Level

__all__ = ["check_clock", "check_disk", "check_machine", "check_package", "java_of_spark", "required"]

_OLDEST_PYTHON = (3, 11)
_OLDEST_JAVA = 17
"""For the local Kafka, and for a PySpark that is not there."""
_SERVICE = {
    "grpcio": "grpc",
    "protobuf": "google.protobuf",
    "packaging": "packaging",
    "SQLAlchemy": "sqlalchemy",
    "typer": "typer",
    "rich": "rich",
}
_JOB = {
    "pyspark": "pyspark",
    "confluent-kafka": "confluent_kafka",
    "kafka-python": "kafka",
    "numpy": "numpy",
    "pyarrow": "pyarrow",
    "pandas": "pandas",
}
"""Distributions and what is imported of each."""
_CLASS_FILES_OF_JAVA_0 = 44
"""The major version of class files is this plus Java's."""
_LEAST_FREE = 10**9
_UNSYNCHRONISED = 5
"""TIME_ERROR of adjtimex(2)."""


def check_machine() -> Iterator[Check]:
    """Yield Python, Java and the packages. Loads each package: a wheel for another system is found only so."""
    wanted = ".".join(map(str, _OLDEST_PYTHON))
    found = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info >= _OLDEST_PYTHON:
        yield Check(subject="Python", found=found)
    else:
        yield Check(subject="Python", found=found, level=Level.ERROR, remedy=f"install Python {wanted} or newer")
    for package, module in _SERVICE.items():
        yield check_package(package, module, "pip install onceward")
    for check in (_java(), *(check_package(*one, "pip install 'onceward[spark]'") for one in _JOB.items())):
        if check.ok or _installed("pyspark"):
            yield check
        else:
            yield replace(check, level=Level.WARNING, remedy=f"{check.remedy}; a coordinator alone needs none of it")


def _java() -> Check:
    least, whose = java_of_spark()
    remedy = f"install a Java of version {least} or newer{whose}; only jobs need it"
    java = java_path()
    if java is None:
        return Check(subject="Java", found="-", level=Level.ERROR, remedy=remedy)
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
    except (OSError, subprocess.SubprocessError) as error:
        return Check(subject="Java", found=f"{java} does not run: {error}", level=Level.ERROR, remedy=remedy)
    first = said.splitlines()[0] if said else java
    match = re.search(r'version "(?:1\.)?(\d+)', said)
    if match is not None and int(match[1]) >= least:
        return Check(subject="Java", found=first)
    return Check(subject="Java", found=first, level=Level.ERROR, remedy=remedy)


def java_of_spark() -> tuple[int, str]:
    """Return the oldest Java that runs the installed PySpark, as its class files say, and words for whose it is."""
    try:
        jars = [one for one in files("pyspark") or () if one.match("pyspark/jars/spark-launcher_*.jar")]
        with zipfile.ZipFile(str(jars[0].locate())) as jar:
            name = next(one for one in jar.namelist() if one.endswith(".class"))
            with jar.open(name) as content:
                head = content.read(8)
    except (PackageNotFoundError, IndexError, StopIteration, OSError, zipfile.BadZipFile):
        return _OLDEST_JAVA, ""
    return int.from_bytes(head[6:8]) - _CLASS_FILES_OF_JAVA_0, f", for PySpark {version('pyspark')}"


def _installed(package: str) -> bool:
    try:
        version(package)
    except PackageNotFoundError:
        return False
    return True


def check_package(package: str, module: str, command: str) -> Check:
    """Check that ``module`` of a distribution loads, and the version; ``command`` installs it."""
    try:
        found = version(package)
        import_module(module)
    except PackageNotFoundError:
        return Check(subject=package, found="-", level=Level.ERROR, remedy=command)
    except Exception as error:  # noqa: BLE001 - whatever keeps a package from loading is the answer
        why = f"{found} does not load: {error}"
        return Check(subject=package, found=why, level=Level.ERROR, remedy="install it again, for this Python")
    wanted = required(package)
    if wanted is None or wanted.specifier.contains(found, prereleases=True):
        return Check(subject=package, found=found)
    return Check(subject=package, found=found, level=Level.ERROR, remedy=f"pip install '{package}{wanted.specifier}'")


def required(package: str) -> Requirement | None:
    """Return what onceward's own metadata requires of a distribution; None for nothing."""
    try:
        found = [Requirement(line) for line in requires("onceward") or []]
    except PackageNotFoundError:
        return None
    name = canonicalize_name(package)
    return next((one for one in found if canonicalize_name(one.name) == name), None)


def check_clock() -> Iterator[Check]:
    """Yield whether this machine's clock is set by the network, and that no other clock can be asked."""
    answer = _adjtimex()
    if answer is None:
        yield Check(
            subject="clock of this machine",
            found="the system does not report whether it is synchronised",
            level=Level.UNKNOWN,
            remedy="run a time service, such as chrony",
        )
    elif answer == _UNSYNCHRONISED:
        yield Check(
            subject="clock of this machine",
            found="not synchronised: ages and times in listings can be wrong",
            level=Level.WARNING,
            remedy="run a time service, such as chrony",
        )
    else:
        yield Check(subject="clock of this machine", found="synchronised")
    yield Check(
        subject="clocks of brokers and coordinators",
        found="no request to them returns their time",
        level=Level.UNKNOWN,
        remedy="run a time service on each; exactly once does not depend on clocks",
    )


def _adjtimex() -> int | None:
    """Return the kernel's answer to adjtimex(2) that changes nothing; None without one."""
    try:
        answer = int(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(512)))
    except (AttributeError, OSError):
        return None
    return answer if answer >= 0 else None


def check_disk(directory: Path, what: str = "state directory") -> Check:
    """Check where a store would be kept: a local disk, ours alone, with space. ``directory`` need not exist."""
    subject = f"{what} {directory}"
    place = directory
    while not os.path.lexists(place):
        place = place.parent
    try:
        refuse_network_filesystem(place)
        if place == directory:
            require_private_directory(place)
        free = shutil.disk_usage(place).free
    except StoreUnusableError as error:
        remedy = "name a directory of your own on a local disk: --state-dir, ONCEWARD_STATE_DIR, --store"
        return Check(subject=subject, found=str(error), level=Level.ERROR, remedy=remedy)
    except OSError as error:
        return Check(subject=subject, found=str(error), level=Level.ERROR, remedy="name a directory that can be used")
    if not os.access(place, os.W_OK | os.X_OK):
        found = f"this user may not write in {place}"
        return Check(subject=subject, found=found, level=Level.ERROR, remedy="grant it, or name another directory")
    found = f"{size(free)} free" + ("" if place == directory else ", to be created")
    if free < _LEAST_FREE:
        remedy = f"keep {size(_LEAST_FREE)} free: without space no checkpoint completes"
        return Check(subject=subject, found=found, level=Level.WARNING, remedy=remedy)
    return Check(subject=subject, found=found)
