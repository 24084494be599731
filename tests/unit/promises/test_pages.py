"""The tests on the pages of one's own source and sink pass beside the examples, and fail beside one that is wrong."""

import re
from pathlib import Path

import pytest

from tests.support.user_project import run_tests

ROOT = Path(__file__).resolve().parents[3]
MISTAKES = {
    "sink": (
        'if "/" in name or not name.startswith(own):',
        'if "/" in name:',
        {"a_document_of_another_job", "a_document_of_another_sink", "a_document_of_a_later_generation"},
    ),
    "source": (
        '< split["end"]:\n                raise',
        "< 0:\n                raise",
        {"a_replay_of_input_that_is_gone"},
    ),
}


@pytest.mark.whole_tree
@pytest.mark.parametrize("side", MISTAKES)
def test_the_test_of_the_page_passes_and_notices_a_mistake(side: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / f"your-own-{side}.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    (block,) = (one for one in blocks if "import pytest" in one)
    example = (ROOT / "examples" / f"custom_{side}.py").read_text()
    right, wrong, noticed = MISTAKES[side]
    assert example.count(right) == 1
    for name, text in (("right", example), ("wrong", example.replace(right, wrong))):
        project = tmp_path / name
        project.mkdir()
        (project / f"custom_{side}.py").write_text(text)
        (project / f"test_custom_{side}.py").write_text(block)
        ran = run_tests(project)
        failed = set(re.findall(r"^FAILED .*\[(\w+?)(?:_is_refused\w*)?\]", ran.stdout, flags=re.MULTILINE))
        assert failed == (noticed if name == "wrong" else set()), ran.stdout[-4000:] + ran.stderr[-2000:]
        assert ran.returncode == (1 if name == "wrong" else 0)
