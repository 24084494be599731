"""The daemon of Python workers takes the installed PySpark, and no other."""

import importlib.util
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

import py4j
import pyspark
import pytest

from onceward.executor.daemon import DAEMON, can_start, without_archives
from tests.support.waiting import wait_until

INSTALLED = str(Path(pyspark.__file__).parents[1])
LIB = Path(pyspark.__file__).parent / "python" / "lib"
ARCHIVES = [str(path) for path in sorted(LIB.glob("*.zip"))]


def test_the_archives_of_the_installed_pyspark_are_left_out() -> None:
    assert len(ARCHIVES) == 2, "PySpark and Py4J"
    assert Path(py4j.__file__).parents[1] == Path(INSTALLED)
    assert without_archives(["", *ARCHIVES, INSTALLED]) == ["", INSTALLED]


def test_the_archives_of_another_spark_stay(tmp_path: Path) -> None:
    path = [str(tmp_path / "python" / "lib" / Path(archive).name) for archive in ARCHIVES] + [INSTALLED]
    assert without_archives(path) == path


def test_archives_stay_where_no_pyspark_is_installed(tmp_path: Path) -> None:
    path = [*ARCHIVES, str(tmp_path)]
    assert without_archives(path) == path


def test_the_archives_stay_where_no_py4j_is_installed(tmp_path: Path) -> None:
    (tmp_path / "pyspark").symlink_to(Path(pyspark.__file__).parent)
    path = [*ARCHIVES, str(tmp_path)]
    assert without_archives(path) == path


def test_the_daemon_is_a_module_that_a_new_python_finds() -> None:
    assert importlib.util.find_spec(DAEMON) is not None
    assert can_start({})
    assert can_start({"PYSPARK_PYTHON": sys.executable})


def test_another_python_is_not_asked_for_our_daemon() -> None:
    assert not can_start({"PYSPARK_PYTHON": "/usr/bin/python3"})


@pytest.mark.parametrize("module", [DAEMON, "pyspark.daemon"])
def test_workers_whose_jvm_has_ended_say_nothing(module: str) -> None:
    """At the end of each job. Spark's own daemon prints tracebacks, which shows that this test sees them."""
    secret = b"s3cret"
    started = subprocess.Popen(
        [sys.executable, "-m", module, "pyspark.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHON_WORKER_FACTORY_SECRET": secret.decode(), "SPARK_REUSE_WORKER": "1"},
    )
    assert started.stdin is not None
    assert started.stdout is not None
    (port,) = struct.unpack("!i", started.stdout.read(4))
    with socket.create_connection(("127.0.0.1", port), 30) as jvm:
        jvm.sendall(struct.pack("!i", len(secret)) + secret)
        (worker,) = struct.unpack("!i", jvm.recv(4, socket.MSG_WAITALL))
        assert jvm.recv(6, socket.MSG_WAITALL) == b"\0\0\0\2ok"
        jvm.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    wait_until(lambda: not Path(f"/proc/{worker}").exists(), "the worker has ended")
    _, said = started.communicate(timeout=60)
    assert (b"failed to flush" in said, b"Traceback" in said) == ((module != DAEMON,) * 2), said.decode()
