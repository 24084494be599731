"""The pages as a site: whole, and without anything from elsewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

_LOADED = re.compile(
    r"<(?:script|img|iframe|source|link)\b[^>]*?\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>|class=\"?mermaid"
)
_STYLED = re.compile(r"@import|url\(\s*[\"']?(?:https?:)?//")


def test_the_site_builds_without_a_warning_and_loads_nothing_from_outside(tmp_path: Path) -> None:
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", tmp_path],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > len(list((ROOT / "docs").rglob("*.md")))  # and the page of a missing address
    for page in pages:
        html = page.read_text(encoding="utf-8")
        assert "default-src 'self'" in html, page
        assert _LOADED.findall(html) == [], page
    for sheet in tmp_path.rglob("*.css"):
        assert _STYLED.findall(sheet.read_text(encoding="utf-8")) == [], sheet


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.name)
def test_what_is_nested_in_a_list_is_indented_by_four_spaces_or_the_site_flattens_it(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    assert re.findall(r"^ {1,3}(?:[-*|]|\d+\.) .*", text, flags=re.MULTILINE) == []
