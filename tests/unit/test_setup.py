"""The set-up of a new machine names in one sentence what is missing and how to install it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ("awk", "cat", "cmp", "dirname", "grep", "head", "id", "rm", "sed", "sh", "tail", "tee")


class Machine:
    """A machine with only the programs that a test adds: ``PATH`` is one directory with a few basic tools."""

    def __init__(self, directory: Path) -> None:
        self.programs = directory / "bin"
        self.venv = directory / "venv"
        self.variables: dict[str, str] = {}
        self.checkout = ROOT
        self.programs.mkdir()
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found is not None, tool
            (self.programs / tool).symlink_to(found)
        self.add("id", "echo 1000")

    def add(self, name: str, script: str) -> Path:
        """Put a program on the machine."""
        path = self.programs / name
        path.unlink(missing_ok=True)
        path.write_text(f"#!{shutil.which('sh')}\n{script}\n")
        path.chmod(0o755)
        return path

    def add_python(self, version: str, *, venv: bool = True, name: str = "python3") -> None:
        """Add a Python of some version, with or without the modules that create environments."""
        minor = int(version.partition(".")[2])
        self.add(
            name,
            'case "$2" in\n'
            f"  *print*) echo {version} ;;\n"
            f"  *exit*) exit {int(minor < 11)} ;;\n"
            f"  *ensurepip*) exit {int(not venv)} ;;\n"
            '  *) mkdir "$3" ;;\n'
            "esac",
        )

    def add_java(self, version: str) -> None:
        self.add("java", f"echo 'openjdk version \"{version}\" 2025-04-15' >&2")

    def add_environment(self) -> None:
        """Add an environment as a finished set-up leaves it."""
        (self.venv / "bin").mkdir(parents=True)
        (self.venv / "bin" / "python").symlink_to(sys.executable)
        made_of = f"{self.checkout}\n{(ROOT / 'pyproject.toml').read_text()}{(ROOT / 'constraints.txt').read_text()}"
        (self.venv / "onceward-setup").write_text(made_of)
        native = ROOT / "native"
        sources = [
            native / "build.sh",
            native / "setup.py",
            native / "pyproject.toml",
            *sorted((native / "src").iterdir()),
        ]
        (self.venv / "onceward-native").write_text("".join(map(Path.read_text, sources)))

    def add_checkout(self, directory: Path) -> Path:
        """Add a copy of what the set-up reads, for one that changes it; return the place of the compiled library."""
        self.checkout = directory
        for name in ("scripts/setup.sh", "pyproject.toml", "constraints.txt"):
            (directory / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, directory / name)
        shutil.copytree(ROOT / "native", directory / "native", ignore=shutil.ignore_patterns("*.so"))
        return directory / "native" / "onceward_native" / "libonceward_native.so"

    def set_up(self) -> tuple[int, str]:
        """Run the set-up; return its exit code and its output."""
        done = subprocess.run(
            [shutil.which("sh") or "sh", str(self.checkout / "scripts" / "setup.sh"), "--no-broker"],
            env={"PATH": str(self.programs), "ONCEWARD_VENV": str(self.venv), **self.variables},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_missing_python_is_reported_with_the_command_that_installs_it(machine: Machine) -> None:
    machine.add("apt-get", "")
    assert machine.set_up() == (
        1,
        "setup: Python 3.11 or newer is needed and python3 does not run; "
        "install it with: sudo apt-get install -y python3.11 python3.11-venv\n",
    )


def test_a_too_old_python_is_reported_with_its_version(machine: Machine) -> None:
    machine.add_python("3.9")
    machine.add("brew", "")
    assert machine.set_up() == (
        1,
        "setup: Python 3.11 or newer is needed and this is 3.9; install it with: brew install python@3.11\n",
    )


def test_a_python_without_venv_is_reported_with_its_package(machine: Machine) -> None:
    machine.add_python("3.9")
    machine.add_python("3.12", venv=False, name="python3.12")
    machine.add("apt-get", "")
    machine.add("id", "echo 0")  # root needs no sudo
    assert machine.set_up() == (
        1,
        "setup: Python 3.12 has no venv module; install it with: apt-get install -y python3.12-venv\n",
    )


def test_a_missing_java_is_reported_with_the_command_that_installs_it(machine: Machine) -> None:
    machine.add_environment()
    machine.add("apt-get", "")
    assert machine.set_up() == (
        1,
        "setup: Java 17 or newer is needed (for Spark and the local Kafka) and java does not run; "
        "install it with: sudo apt-get install -y openjdk-17-jre-headless\n",
    )


@pytest.mark.parametrize(("said", "version"), [("11.0.2", "11"), ("1.8.0_392", "8")])
def test_a_too_old_java_is_reported_with_its_version(machine: Machine, said: str, version: str) -> None:
    machine.add_environment()
    machine.add_java(said)
    machine.add("brew", "")
    assert machine.set_up() == (
        1,
        f"setup: Java 17 or newer is needed (for Spark and the local Kafka) and java is {version}; "
        "install it with: brew install openjdk@17\n",
    )


def test_java_home_counts_before_path(machine: Machine) -> None:
    machine.add_environment()
    machine.add_java("17.0.1")
    machine.variables["JAVA_HOME"] = "/nowhere"
    code, said = machine.set_up()
    assert code == 1
    assert "/nowhere/bin/java does not run" in said


@pytest.mark.parametrize("version", ["17", "17.0.15", "25-ea"])
def test_a_finished_set_up_is_not_repeated_and_prints_nothing(machine: Machine, version: str) -> None:
    machine.add_environment()
    machine.add_java(version)
    assert machine.set_up() == (0, "")


def test_a_machine_without_a_c_compiler_is_set_up_without_the_compiled_library(
    machine: Machine, tmp_path: Path
) -> None:
    library = machine.add_checkout(tmp_path / "checkout")
    library.write_text("an older one")
    machine.add_environment()
    machine.add_java("17")
    machine.add("dnf", "")
    (machine.venv / "onceward-native").unlink()
    assert machine.set_up() == (
        0,
        "setup: there is no C compiler, so onceward-native is left out: librdkafka reads and writes all records; "
        "install one with: sudo dnf install -y gcc\n",
    )
    assert not library.exists()


def test_a_library_that_does_not_compile_is_left_out_and_tried_again(machine: Machine, tmp_path: Path) -> None:
    library = machine.add_checkout(tmp_path / "checkout")
    library.write_text("an older one")
    machine.add_environment()
    machine.add_java("17")
    machine.add("cc", "echo no headers; exit 1")
    (machine.venv / "onceward-native").unlink()
    log = machine.venv / "onceward-setup.log"
    for _ in range(2):
        assert machine.set_up() == (
            0,
            "setup: compiling onceward-native\n"
            f"setup: onceward-native does not compile (the reason is in {log}), so it is left out: "
            "librdkafka reads and writes all records\n",
        )
    assert log.read_text() == "no headers\n" * 2
    assert not library.exists()


def test_packages_that_cannot_be_installed_end_the_set_up_and_the_next_one_tries_again(machine: Machine) -> None:
    machine.add_python("3.11")
    machine.add_java("17.0.1")
    (machine.venv / "bin").mkdir(parents=True)
    pip = machine.venv / "bin" / "python"
    pip.write_text(f'#!{shutil.which("sh")}\n[ "$3" = --version ] && exit 0\necho no such network\nexit 1\n')
    pip.chmod(0o755)
    for _ in range(2):
        code, said = machine.set_up()
        assert code == 1
        assert "no such network\n" in said
        assert said.endswith(
            f"the packages could not be installed (all that pip said is in {machine.venv}/onceward-setup.log)\n"
        )


def test_every_constraint_is_a_name_and_a_version_and_nothing_else() -> None:
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        name, version = line.split("==")
        assert name.replace("-", "").replace("_", "").isalnum()
        assert version.replace(".", "").isalnum()


def test_the_scripts_can_be_run() -> None:
    for script in (".ci/run", "scripts/setup.sh", "scripts/check.sh"):
        assert os.access(ROOT / script, os.X_OK), script
