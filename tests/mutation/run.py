"""Runs mutmut over one module, in a copy of the tree under ``build/``. Verdicts are kept, so that a run can be
continued."""

import ast
import fnmatch
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.mutation.parts import Part
from tests.mutation.verdicts import MISSED, Verdicts
from tests.support.rooms import ROOMS

__all__ = ["BUILD", "called_on_import", "in_package", "modules", "place_of", "run"]

_ROOT = Path(__file__).parents[2]
BUILD = _ROOT / "build" / "mutation"
_PACKAGE = "onceward"
_BESIDE = ("README.md", "Makefile", "benchmarks", "compose", "deploy", "docs", "examples", "protos", "scripts")
_TYPES = ("--output=json", "--follow-imports=silent", f"--cache-dir={BUILD / 'mypy'}")
_CALM = ("--no-warn-unreachable", "--no-warn-unused-ignores", "--no-warn-redundant-casts")
"""Code that a mutation makes superfluous is not a type error."""
_MARKS = "not slow and not kill and not compose and not crash and not network"


def modules(part: Part) -> list[str]:
    """The files to mutate, relative to the root of the tree."""
    found = (str(path.relative_to(_ROOT)) for pattern in part.files for path in _ROOT.glob(pattern))
    return sorted(each for each in found if not any(fnmatch.fnmatch(each, pattern) for pattern in part.without))


def in_package(file: str) -> str:
    """The path of ``file`` in a copy: in a real folder, since mutmut does not follow links."""
    return f"{_PACKAGE}/{file}" if file.split("/")[0] in ROOMS else file


def place_of(module: str) -> Path:
    """The directory in which ``module`` is mutated."""
    return BUILD / module.removesuffix(".py").replace("/", ".")


def run(part: Part, module: str, children: int) -> None:
    """Mutate ``module`` and run its tests, as far as that is not done yet."""
    place = place_of(module)
    _copy(place)
    options = [
        *("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-p", "tests.mutation.fastest"),
        *("--hypothesis-profile=quick", "-m", _MARKS, *(f"--deselect={each}" for each in part.too_slow)),
    ]
    settings = {
        "source_paths": [_PACKAGE],
        "only_mutate": [in_package(module)],
        "also_copy": _BESIDE,
        "pytest_add_cli_args": options,
        "pytest_add_cli_args_test_selection": part.tests,
        "type_check_command": [sys.executable, "-m", "mypy", *_TYPES, *_CALM, in_package(module)],
        "process_isolation": "fork",
        "timeout_multiplier": 5,
        "timeout_constant": 12,
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    with (place / "pyproject.toml").open("a") as config:
        config.write("\n[tool.mutmut]\n" + "\n".join(lines) + "\n")
    _forget_what_was_missed(place, module)
    # Not `python -m mutmut`: that imports the original packages, not the mutated ones.
    command = [str(Path(sys.executable).with_name("mutmut")), "run", "--max-children", str(children)]
    code = subprocess.run(command, cwd=place, check=False).returncode
    verdicts = Verdicts.load(place, in_package(module))
    # mutmut also fails where there is nothing to mutate and where no test reaches a mutant.
    if code and (verdicts is None or verdicts.codes):
        print(f"mutmut ended with exit code {code}: what it has not run counts as missed", flush=True)
    if verdicts is not None:
        _run_what_imports_run(verdicts, [*options, *part.tests])


def _run_what_imports_run(verdicts: Verdicts, arguments: list[str]) -> None:
    """Run the tests for mutants of functions that run at import. mutmut activates a mutant after everything is
    imported: too late."""
    names = called_on_import((verdicts.place / verdicts.module).read_text())
    codes = dict(verdicts.codes)
    for key, code in verdicts.codes.items():
        if code in MISSED and key.rpartition(".")[2].rpartition("__mutmut_")[0].removeprefix("x_") in names:
            failed = subprocess.run(
                [sys.executable, "-m", "pytest", "-x", *arguments],
                cwd=verdicts.place / "mutants",
                env={**os.environ, "MUTANT_UNDER_TEST": key},
                stdout=subprocess.DEVNULL,
                check=False,
            ).returncode
            codes[key] = 1 if failed else 0
    verdicts.save(codes)


def called_on_import(source: str) -> set[str]:
    """The functions that a module's statements call, outside of its own functions and classes."""
    inside = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    statements = (each for each in ast.parse(source).body if not isinstance(each, inside))
    called = (node.func for each in statements for node in ast.walk(each) if isinstance(node, ast.Call))
    return {each.id for each in called if isinstance(each, ast.Name)}


def _forget_what_was_missed(place: Path, module: str) -> None:
    """After a change of the tests, reset the mutants they missed. mutmut itself does so only for functions that
    changed."""
    tests = hashlib.sha256()
    for path in sorted((place / "tests").rglob("*")):
        if path.is_file():
            tests.update(path.read_bytes())
    stamp = place / "tests.sha256"
    verdicts = Verdicts.load(place, in_package(module))
    if verdicts is not None and stamp.is_file() and stamp.read_text() != tests.hexdigest():
        verdicts.save({key: None if code in MISSED else code for key, code in verdicts.codes.items()})
    stamp.write_text(tests.hexdigest())
    stats = place / "mutants" / "mutmut-stats.json"
    if stats.is_file():  # with a longer list of tests, mutants that were noticed need no new run
        stats.write_text(json.dumps({**json.loads(stats.read_text()), "config_fingerprint": {}}))


def _copy(place: Path) -> None:
    """Update the copy. Unchanged files keep their times, by which mutmut recognises them."""
    command = [
        "git",
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
        _PACKAGE,
        *ROOMS,
        *_BESIDE,
        "tests",
    ]
    listed = subprocess.run(command, cwd=_ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    names = {in_package(name): name for name in [*listed, "pyproject.toml"] if name and (_ROOT / name).is_file()}
    for name, file in names.items():
        source, copy = _ROOT / file, place / name
        if not (copy.is_file() and copy.read_bytes() == source.read_bytes()):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
            # mutmut copies only missing files.
            (place / "mutants" / name).unlink(missing_ok=True)
    for top in (_PACKAGE, "tests"):
        for path in (place / top).rglob("*.py"):
            if (name := str(path.relative_to(place))) not in names:
                path.unlink()
                (place / "mutants" / name).unlink(missing_ok=True)
