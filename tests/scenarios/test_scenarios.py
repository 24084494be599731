"""Every file here is a job's life as text (see tests/support/player.py). The core's output must match it line by line.

``pytest tests/scenarios --regenerate`` writes the current output; the diff shows the effect of a change.
"""

from pathlib import Path

import pytest

from tests.support.player import play

HERE = Path(__file__).parent
FILES = sorted(HERE.rglob("*.txt"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}/{file.stem}")
def test_the_core_behaves_as_written(file: Path, request: pytest.FixtureRequest) -> None:
    written = file.read_text(encoding="utf-8")
    said = play(written)
    if request.config.getoption("--regenerate"):
        file.write_text(said, encoding="utf-8")
    else:
        assert said == written


def test_every_scenario_has_a_purpose_and_events() -> None:
    assert FILES
    for file in FILES:
        lines = file.read_text(encoding="utf-8").splitlines()
        assert lines[0].startswith("# "), file
        assert any(line.startswith("> ") for line in lines), file


def test_a_difference_is_found() -> None:
    text = "# A job opens.\n> open d1\n  refused\n"
    assert play(text) != text
