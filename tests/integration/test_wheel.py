"""What ``pip install onceward`` gives: one importable name, and a job that runs beside folders called like ours."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from tests.integration.tools import Topics

pytestmark = pytest.mark.timeout(300)

ROOT = Path(__file__).resolve().parents[2]
OUR_FOLDERS = ("connections", "coordinator", "sinks", "sources")

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
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy: a build leaves files beside its sources."""
    tree, built = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("wheel")
    for name in filter(None, run("git", "ls-files", "-z", cwd=ROOT).split("\0")):
        if (ROOT / name).exists():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    run(
        *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", built),
        tree,
        cwd=tree,
    )
    (found,) = built.glob("*.whl")
    return found


def test_the_wheel_adds_one_importable_name(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0] for name in names if ".dist-info/" not in name} == {"onceward"}
    for folder in OUR_FOLDERS:
        assert any(name.startswith(f"onceward/{folder}/") for name in names)
    assert "onceward/py.typed" in names


def test_a_job_runs_from_the_wheel_beside_folders_called_like_ours(
    wheel: Path, topics: Topics, job: str, tmp_path: Path
) -> None:
    environment, work = tmp_path / "environment", tmp_path / "work"
    run(sys.executable, "-m", "venv", "--without-pip", environment, cwd=tmp_path)
    python = environment / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", wheel, cwd=tmp_path)
    # what onceward depends on, without the editable onceward: a directory named in a .pth file has its own ignored
    installed = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    (installed / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    for folder in OUR_FOLDERS:
        (work / folder).mkdir(parents=True)
        (work / folder / "__init__.py").touch()
    (work / "sinks" / "shouting.py").write_text(SHOUTING)
    (work / "job.py").write_text(JOB)

    source, sink = topics.create("in", 2), topics.create("out", 2)
    topics.fill(source, [b"record %d" % number for number in range(100)], key=b"key")
    said = run(python, "job.py", job, topics.servers, source, sink, cwd=work)

    assert str(installed) in said
    assert set(topics.values(sink)) == {b"RECORD %d" % number for number in range(100)}
    assert len(topics.values(sink)) == 100
