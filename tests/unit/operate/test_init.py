"""`onceward init`: all files or none, nothing of the user's changed, and code that holds to our own rules."""

import json
import os
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from string import Template

import pytest

from onceward.common.errors import ConfigurationError
from onceward.operate import init
from onceward.operate.init import FILES, make_project
from tests.unit.compose.dockerfile import stages

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A new project."""
    make_project(tmp_path / "project")
    return tmp_path / "project"


def below(directory: Path) -> dict[str, str]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_text(encoding="utf-8") for path in files}


def check(project: Path, *command: str | Path) -> None:
    """Run Python in the project, with this Onceward."""
    done = subprocess.run(
        [sys.executable, *command],
        cwd=project,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_project_has_its_files_and_nothing_is_left_beside_it(project: Path) -> None:
    assert set(below(project)) == set(FILES)
    assert list(project.parent.iterdir()) == [project]
    assert project.stat().st_mode & 0o777 == 0o755  # the umask of the tests


def test_an_empty_directory_is_taken_also_by_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    make_project(tmp_path / "link")
    assert set(below(tmp_path / "empty")) == set(FILES)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    make_project(Path())
    assert set(below(tmp_path / "here")) == set(FILES)


@pytest.mark.parametrize(
    ("missing", "installed_from", "said"),
    [
        ("", None, ""),
        ("onceward.dev", None, " && pip install -r requirements-test.txt"),
        (
            "onceward.dev",
            {"url": "file:///src/my%20clone", "dir_info": {}},
            " && pip install '/src/my clone/dev' -r requirements-test.txt",
        ),
        (
            "pytest",
            {"url": "file:///tmp/onceward.whl", "archive_info": {}},
            " && pip install CLONE/dev -r requirements-test.txt",
        ),
    ],
    ids=["all is there", "from an index", "from a clone", "from a wheel"],
)
def test_three_lines_say_what_to_do_next(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    missing: str,
    installed_from: dict[str, object] | None,
    said: str,
) -> None:
    class Installed:
        def read_text(self, _name: str) -> str | None:
            return None if installed_from is None else json.dumps(installed_from)

    if missing:
        monkeypatch.setattr(init, "find_spec", lambda name: None if name == missing else object())
        monkeypatch.setattr(init, "distribution", lambda _name: Installed())
    make_project(tmp_path / "my project")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"cd '{tmp_path / 'my project'}'{said}"
    assert [line.split("  ")[0] for line in lines[1:]] == ["pytest", "python job.py"]


@pytest.mark.parametrize("taken", ["notes.txt", "notes.txt/file", ".git"])
def test_what_exists_is_refused_by_name_and_not_changed(tmp_path: Path, taken: str) -> None:
    (tmp_path / "mine" / taken).parent.mkdir(parents=True)
    (tmp_path / "mine" / taken).write_text("mine")
    before = below(tmp_path)
    for directory in (tmp_path / "mine", tmp_path / "mine" / taken):
        with pytest.raises(ConfigurationError, match=f"^{directory} exists and is not an empty directory"):
            make_project(directory)
    assert below(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_parent_that_does_not_exist_is_refused_and_not_created(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"new/project cannot be created: No such file or directory"):
        make_project(tmp_path / "new" / "project")
    assert list(tmp_path.iterdir()) == []


def test_a_failure_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []

    def fill(template: Template, values: dict[str, str]) -> str:
        written.append(template.template)
        if len(written) == len(FILES):
            raise OSError(28, "No space left on device")
        return template.template

    monkeypatch.setattr(Template, "substitute", fill)
    with pytest.raises(ConfigurationError, match="project cannot be created: No space left on device"):
        make_project(tmp_path / "project")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_came_in_between_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(template: Template, values: dict[str, str]) -> str:
        (tmp_path / "project").mkdir(exist_ok=True)
        (tmp_path / "project" / "notes.txt").write_text("mine")
        return template.template

    monkeypatch.setattr(Template, "substitute", fill)
    with pytest.raises(ConfigurationError, match="project exists and is not an empty directory"):
        make_project(tmp_path / "project")
    assert below(tmp_path) == {"project/notes.txt": "mine"}


def test_onceward_is_pinned_to_the_running_version_and_python_to_our_image(project: Path) -> None:
    files, running = below(project), version("onceward")
    assert files["requirements.txt"] == f"onceward[spark]=={running}\n"
    assert f"onceward[dev]=={running}" in files["requirements-test.txt"].splitlines()
    assert f"FROM {stages()['python'].base}\n" in files["Dockerfile"]


def test_the_job_takes_its_settings_with_and_without_a_coordinator(project: Path) -> None:
    settings = tomllib.loads((project / "settings.toml").read_text())
    named = (project / "settings.toml").read_text().replace("# coordinator =", "coordinator =")
    assert tomllib.loads(named) == settings | {"coordinator": "127.0.0.1:7878"}
    for text in (None, named):
        if text is not None:
            (project / "settings.toml").write_text(text)
        check(project, "-c", "import job; job.make_pipeline(job.read_settings())")


def test_the_code_is_formatted_and_has_no_lint(project: Path) -> None:
    ruff = ("--no-cache", "--config", ROOT / "pyproject.toml")
    check(project, "-m", "ruff", "format", "--check", *ruff)
    # In a user's project, job.py is the user's and onceward is not.
    check(project, "-m", "ruff", "check", *ruff, "--config", 'lint.isort.known-first-party = ["job"]')


@pytest.mark.slow  # mypy reads Spark's types without a cache
def test_the_types_of_the_code_are_right(project: Path, tmp_path: Path) -> None:
    code = [name for name in FILES if name.endswith(".py")]
    check(project, "-m", "mypy", "--config-file", ROOT / "pyproject.toml", "--cache-dir", tmp_path / "cache", *code)
