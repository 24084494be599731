"""The rules on imports between packages (CONTRIBUTING, "Where a line belongs")."""

import ast
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.rooms import ROOMS

pytestmark = pytest.mark.whole_tree

ROOT = Path(__file__).resolve().parents[2]
OURS = ("benchmarks", "onceward", "tests", *ROOMS)

# The project's packages that each package may import besides itself and `common`.
ALLOWED: dict[str, tuple[str, ...]] = {
    "common": (),
    "protocol": (),
    "wire": ("protocol",),
    "coordinator/store": ("protocol", "wire.rows"),
    "coordinator/service": ("protocol", "wire", "coordinator.store"),
    "client": ("protocol", "wire", "connections.secrets"),
    "connectors": ("protocol",),
    "executor": ("connectors",),
    "driver": (
        "protocol",
        "client",
        "connectors",
        "executor",
        "watch",
        "coordinator.service.embedded",
        "coordinator.service.kinds",
        "coordinator.service.listen",
        "coordinator.service.observer",
        "coordinator.service.state_dir",
    ),
    "watch/metrics": (
        "protocol",
        "coordinator.service.certificates",
        "coordinator.service.listen",
        "coordinator.service.observer",
    ),
    "watch/traces": ("protocol", "coordinator.service.observer"),
    "watch/web": (
        "protocol",
        "wire.rows",
        "client",
        "connectors.letter_counts",
        "connectors.letters",
        "coordinator.service.listen",
    ),
    "connections": ("protocol",),
    "sources": ("connections", "connectors", "driver.spark.session", "executor", "protocol"),
    "sinks": ("connections", "connectors", "protocol"),
    "operate": (
        "protocol",
        "wire.lead",
        "wire.rows",
        "coordinator",
        "client",
        "connections",
        "connectors.at_rest",
        "connectors.interfaces",
        "connectors.letter_counts",
        "connectors.letters",
        "connectors.slots",
        "driver.pipeline",
        "driver.restarts",
        "driver.spark.session",
        "watch",
    ),
}

# Rooms of a source and a sink, by the process that runs them. A room imports the rooms named here, and what lies beside
# the rooms (values and errors).
SIDES = ("sources/kafka", "sinks/kafka", "sinks/lake", "sinks/delta", "sinks/iceberg", "sinks/postgres")
INSIDE: dict[str, tuple[str, ...]] = {
    "client": (),
    "executor": ("client",),
    "control": (),
    "driver": ("client", "control", "executor"),
}
EXECUTOR_MODULES = (
    "executor.daemon",
    "executor.functions",
    "executor.staying",
    "sources.kafka.executor.following",
    "sources.kafka.executor.partitions",
    "sources.kafka.executor.reader",
    "sinks.delta.executor.writer",
    "sinks.iceberg.executor.writer",
    "sinks.kafka.executor.writer",
    "sinks.lake.executor.writer",
    "sinks.postgres.executor.writer",
    "connectors.slots",
    "connectors.tasks",
)

NOT_ON_EXECUTORS = tuple(f"onceward.{room}" for room in ("client", "coordinator", "driver", "operate", "watch", "wire"))

# The core may not use time, randomness, threads, files or the network.
PURE_FORBIDDEN = {
    "asyncio", "concurrent", "logging", "multiprocessing", "os", "pathlib", "random", "secrets", "socket", "sqlite3",
    "subprocess", "sys", "tempfile", "threading", "time", "uuid", "grpc", "sqlalchemy", "io", "shutil", "signal",
}  # fmt: skip


@cache
def named(file: Path) -> Sequence[str]:
    """The modules that a file imports anywhere; ``from package import name`` as ``package.name``."""
    found: list[str] = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative imports hide who knows whom"
            found += (f"{node.module}.{alias.name}" for alias in node.names)
    return found


def imports(file: Path) -> Iterator[str]:
    """Yield the same as ``named``, with the project's modules by their folders."""
    yield from map(_folder, named(file))


def _folder(module: str) -> str:
    """``onceward.sinks.kafka`` -> ``sinks.kafka``; names that users import (``onceward.Pipeline``) stay unchanged."""
    inside = module.removeprefix("onceward.")
    return inside if under(inside, ROOMS) else module


def under(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


@pytest.mark.parametrize("package", ALLOWED)
def test_a_package_imports_only_what_lies_below_it(package: str) -> None:
    itself = package.replace("/", ".")
    below = (itself, "common", *ALLOWED[package])
    wrong = [
        f"{file.relative_to(ROOT)} imports {module}"
        for file in sorted((ROOT / package).rglob("*.py"))
        for module in imports(file)
        if under(module, OURS) and not under(module, below)
    ]
    assert wrong == []


def rooms_of(side: str) -> set[str]:
    return {each.name for each in (ROOT / side).iterdir() if each.is_dir()} - {"__pycache__"}


@pytest.mark.parametrize(("side", "room"), [(side, room) for side in SIDES for room in sorted(rooms_of(side))])
def test_a_room_imports_only_rooms_of_its_own_process(side: str, room: str) -> None:
    itself = side.replace("/", ".")
    closed = tuple(f"{itself}.{other}" for other in INSIDE if other not in (room, *INSIDE[room]))
    files = sorted((ROOT / side / room).rglob("*.py"))
    assert len(files) > 1, f"{side}/{room} holds no modules"
    assert rooms_of(side) <= set(INSIDE)
    wrong = [
        f"{file.relative_to(ROOT)} imports {module}"
        for file in files
        for module in imports(file)
        if under(module, closed)
    ]
    assert wrong == []


@pytest.mark.parametrize("side", SIDES)
def test_modules_beside_the_rooms_import_no_room(side: str) -> None:
    rooms = tuple(f"{side.replace('/', '.')}.{room}" for room in INSIDE)
    wrong = [
        f"{file.relative_to(ROOT)} imports {module}"
        for file in sorted((ROOT / side).glob("*.py"))
        for module in imports(file)
        if under(module, rooms)
    ]
    assert wrong == []


def test_no_module_is_imported_under_two_names() -> None:
    """``onceward`` links to the folders; in a checkout, their own names would work as well."""
    places = ("benchmarks", "examples", "onceward", "scripts", "tests", *ROOMS)
    wrong = [
        f"{file.relative_to(ROOT)} imports {module}"
        for place in places
        for file in sorted((ROOT / place).rglob("*.py"))
        for module in named(file)
        if under(module, ROOMS)
    ]
    assert wrong == []


def test_suites_share_only_what_is_in_support() -> None:
    """`tests.support` imports no suite. Mutants look for violations with the explorer and with the simulation."""
    wrong = [
        f"{file.relative_to(ROOT)} imports {module}"
        for suite in (folder for folder in sorted((ROOT / "tests").iterdir()) if folder.is_dir())
        for file in sorted(suite.rglob("*.py"))
        for module in named(file)
        if under(module, ("tests",))
        and not under(module, (f"tests.{suite.name}", "tests.support", "tests.conftest"))
        and not (suite.name == "mutants" and under(module, ("tests.explorer", "tests.simulation")))
    ]
    assert wrong == []


def test_the_product_never_imports_its_public_facade() -> None:
    """`onceward` itself imports everything below it."""
    wrong = [
        f"{file.relative_to(ROOT)} imports {module}"
        for folder in ROOMS
        for file in sorted((ROOT / folder).rglob("*.py"))
        if not file.is_relative_to(ROOT / "dev")
        for module in imports(file)
        if under(module, ("onceward",))
    ]
    assert wrong == []


def test_only_dev_imports_dev_and_no_room_below_imports_a_system() -> None:
    """What is plugged in is found by its entry point."""
    wrong = [
        f"{file.relative_to(ROOT)} imports {module}"
        for room in ROOMS
        if room != "dev"
        for file in sorted((ROOT / room).rglob("*.py"))
        for module in imports(file)
        if under(module, ("dev",)) or (room not in ("sources", "sinks") and under(module, ("sources", "sinks")))
    ]
    assert wrong == []


def test_every_room_has_its_rules() -> None:
    assert {package.partition("/")[0] for package in ALLOWED} == set(ROOMS) - {"dev"}


def test_the_compiled_codec_needs_only_arrow() -> None:
    wrong = [
        f"{file.relative_to(ROOT)} imports {module}"
        for file in sorted((ROOT / "native" / "onceward_native").glob("*.py"))
        for module in named(file)
        if module.partition(".")[0] not in {*sys.stdlib_module_names, "onceward_native", "pyarrow"}
    ]
    assert wrong == []


def test_the_core_is_pure() -> None:
    wrong = [
        f"{file.relative_to(ROOT)} imports {module}"
        for file in sorted((ROOT / "protocol").rglob("*.py"))
        for module in imports(file)
        if module.partition(".")[0] in PURE_FORBIDDEN or module.startswith("datetime.datetime")
    ]
    assert wrong == []


@pytest.mark.parametrize("module", [f"onceward.{name}" for name in EXECUTOR_MODULES])
def test_an_executor_module_needs_only_arrow_numpy_and_its_client(module: str) -> None:
    if find_spec(module) is None:
        pytest.fail(f"{module} is what executors import; it does not exist")
    extra, ours = loaded_by(f"import {module}")
    client = {"psycopg", "psycopg_binary", "typing_extensions"} if "postgres" in module else {"confluent_kafka"}
    assert extra - {"pyarrow", "numpy", "cython_runtime"} - client == set()  # pyarrow brings Cython's
    assert [name for name in ours if under(name, (*NOT_ON_EXECUTORS, "onceward.connectors.interfaces"))] == []


def test_a_writer_of_ones_own_may_import_every_name_of_the_seam_on_executors() -> None:
    extra, ours = loaded_by("from onceward.connectors import *")
    assert extra == set()
    assert [name for name in ours if under(name, NOT_ON_EXECUTORS)] == []


def loaded_by(statement: str) -> tuple[set[str], Sequence[str]]:
    """Return what a new process loads besides the standard library: packages of others, and modules of ours."""
    code = (
        "import sys\n"
        f"{statement}\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))\n"
        "print(*sorted(name for name in sys.modules if name.startswith('onceward.')))\n"
    )
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True, cwd=ROOT
    ).stdout.splitlines()
    bare = subprocess.run(
        [sys.executable, "-c", "import sys; print(*{name.partition('.')[0] for name in sys.modules})"],
        capture_output=True, text=True, timeout=60, check=True, cwd=ROOT,
    ).stdout.split()  # fmt: skip
    allowed = {*sys.stdlib_module_names, *bare, *OURS}
    return {name for name in loaded[0].split() if name not in allowed and name[0] != "_"}, loaded[1].split()
