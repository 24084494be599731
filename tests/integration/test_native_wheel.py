"""What ``pip install onceward-native`` gives: one wheel for a platform and every Python 3."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import pyarrow as pa
import onceward_native
from onceward_native import Decoder, Encoder

encoder = Encoder(1, most_bytes=1000, compression="snappy")
encoder.add(pa.record_batch({"value": pa.array([b"written"])}), keyless=0)
decoder = Decoder(["value"])
decoder.open(encoder.take()[0].data, start=0, end=1)
print(onceward_native.__file__, decoder.read().records.column("value")[0])
"""

pytestmark = pytest.mark.skipif(
    shutil.which(os.environ.get("CC", "cc")) is None, reason="there is no C compiler; install gcc and libc6-dev"
)


def run(*command: str | Path, **environment: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, env={**inherited, **environment}, capture_output=True, text=True, check=False, cwd="/"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_wheel_holds_the_library_and_serves_every_python_3(tmp_path: Path) -> None:
    sources = tmp_path / "native"
    shutil.copytree(ROOT / "native", sources, ignore=shutil.ignore_patterns("*.so", "build", "*.egg-info"))
    options = ("--no-build-isolation", "--no-deps", "--no-index", "-q", "-w", tmp_path)
    run(sys.executable, "-m", "pip", "wheel", *options, sources)
    [wheel] = tmp_path.glob("*.whl")
    python, abi, platform = wheel.stem.split("-")[2:]
    assert (python, abi) == ("py3", "none")
    assert platform != "any"
    installed = tmp_path / "installed"
    zipfile.ZipFile(wheel).extractall(installed)
    said = run(sys.executable, "-c", PROGRAM, PYTHONPATH=str(installed))
    assert said == f"{installed}/onceward_native/__init__.py b'written'\n"
