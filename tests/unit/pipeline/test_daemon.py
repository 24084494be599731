"""The daemon of Python workers takes the installed PySpark, and no other."""

import importlib.util
import sys
from pathlib import Path

import py4j
import pyspark

from onceward.coordinator.pipeline.daemon import DAEMON, can_start, without_archives

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
