"""What ``pip install onceward`` gives: one importable name, and jobs that run beside folders named as its packages."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from onceward.common.errors import ExitCode
from onceward.operate.init import FILES
from tests.support.rooms import ROOMS
from tests.support.topics import Topics

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).resolve().parents[2]
OUR_FOLDERS = [room for room in ROOMS if room != "dev"]

JOB = """
import sys

import connections, coordinator, sources  # the user's own
from sinks.shouting import shout

import onceward
from onceward import CheckpointSettings, KafkaSink, KafkaSource, Pipeline

_, job, servers, source, sink = sys.argv
print("from", onceward.__file__)
Pipeline(
    job=job,
    source=KafkaSource(servers, topics=[source], start="earliest", end="latest"),
    transform_batches=shout,
    sink=KafkaSink(servers, topic=sink),
    settings=CheckpointSettings(interval="200ms"),
).run()
"""
SHOUTING = """
import pyarrow as pa
import pyarrow.compute as pc

def shout(batches):
    for batch in batches:
        value = pc.utf8_upper(batch.column("value").cast(pa.string()))
        yield pa.RecordBatch.from_arrays([batch.column("key"), value], ["key", "value"])
"""


def run(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheels of ``onceward`` and ``onceward-dev``, built from a copy: a build leaves files beside its sources."""
    tree, built = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for name in filter(None, run("git", "ls-files", "-z", cwd=ROOT).split("\0")):
        if (ROOT / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    run(
        *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", built),
        *(tree, tree / "dev"),
        cwd=tree,
    )
    (core,), (dev,) = built.glob("onceward-*.whl"), built.glob("onceward_dev-*.whl")
    return core, dev


@pytest.fixture
def environment(tmp_path: Path) -> "Environment":
    return Environment(tmp_path / "environment")


class Environment:
    """A new environment that finds the dependencies of onceward, but not the onceward of this checkout."""

    def __init__(self, directory: Path) -> None:
        run(sys.executable, "-m", "venv", "--without-pip", directory, cwd=directory.parent)
        self.programs = directory / "bin"
        self.python = self.programs / "python"
        asked = run(self.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=directory)
        self.packages = Path(asked.strip())
        # in a directory that a .pth file names, Python ignores .pth files, and so the editable onceward
        (self.packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")

    def install(self, wheel: Path) -> None:
        run(
            *(sys.executable, "-m", "pip", "--python", self.python, "install", "--quiet", "--no-deps", wheel),
            cwd=self.packages,
        )


def inside(wheel: Path) -> list[str]:
    return [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]


def test_the_wheel_adds_one_importable_name(wheels: tuple[Path, Path]) -> None:
    core, dev = map(inside, wheels)
    assert {name.split("/")[0] for name in [*core, *dev]} == {"onceward"}
    for folder in OUR_FOLDERS:
        assert any(name.startswith(f"onceward/{folder}/") for name in core)
    assert {"onceward/py.typed", "onceward/testing.py"} <= set(core)
    for file in ("static/page.js", "static/style.css", "templates/base.html"):
        assert f"onceward/watch/web/{file}" in core
    for file in FILES:
        assert f"onceward/operate/project/{Path(file).name.removeprefix('.')}.txt" in core
    assert not any("deploy" in name or name.endswith((".yml", ".json")) for name in core)
    assert all(name.startswith("onceward/dev/") for name in dev)
    assert {f"onceward/dev/kafka/jars-{version}.txt" for version in ("3.9", "4.0", "4.3")} <= set(dev)
    assert not set(core) & set(dev)


def test_the_demo_and_the_local_kafka_are_installed_apart(
    wheels: tuple[Path, Path], environment: Environment, tmp_path: Path
) -> None:
    core, dev = wheels
    environment.install(core)
    onceward = environment.programs / "onceward"
    run(onceward, "init", "project", cwd=tmp_path)
    assert (tmp_path / "project" / "tests" / "test_job.py").is_file()
    for command in (["demo", "--seconds", "9"], ["dev", "kafka", "--partitions", "2"]):
        done = subprocess.run([onceward, *command], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == ExitCode.USAGE
        assert "pip install 'onceward[dev]'" in done.stderr
    testing = (environment.python, "-c", "import onceward.testing")
    done = subprocess.run(testing, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "pip install 'onceward[dev]'" in done.stderr
    environment.install(dev)
    run(*testing, cwd=tmp_path)
    assert "--seconds" in run(onceward, "demo", "--help", cwd=tmp_path)
    assert "--partitions" in run(onceward, "dev", "kafka", "--help", cwd=tmp_path)


def test_a_job_runs_from_the_wheel_beside_folders_called_like_ours(
    wheels: tuple[Path, Path], environment: Environment, topics: Topics, job: str, tmp_path: Path
) -> None:
    core, _ = wheels
    environment.install(core)
    work = tmp_path / "work"
    for folder in OUR_FOLDERS:
        (work / folder).mkdir(parents=True)
        (work / folder / "__init__.py").touch()
    (work / "sinks" / "shouting.py").write_text(SHOUTING)
    (work / "job.py").write_text(JOB)

    source, sink = topics.create("in", 2), topics.create("out", 2)
    topics.fill(source, [b"record %d" % number for number in range(100)], key=b"key")
    said = run(environment.python, "job.py", job, topics.servers, source, sink, cwd=work)

    assert str(environment.packages) in said
    assert set(topics.values(sink)) == {b"RECORD %d" % number for number in range(100)}
    assert len(topics.values(sink)) == 100
