"""``python -m tests.unit.web.chromium.screenshots``: draws docs/images/page-*.png from the prepared jobs."""

import sys
import tempfile
from pathlib import Path

from benchmarks.chromium import chromium
from tests.unit.web.chromium.prepared import prepared
from tests.unit.web.chromium.tabs import Tab, opened
from tests.unit.web.chromium.views import SHAPES, VIEWS, Shape, View

__all__ = ["IMAGES", "PICTURES", "main"]

IMAGES = Path(__file__).parents[4] / "docs" / "images"
PICTURES: dict[str, tuple[View, Shape]] = {
    f"page-{view.name}-{shape.name}.png": (view, shape) for view in VIEWS if view.drawn for shape in SHAPES[:3]
}
"""By the name of the file."""


def main() -> int:
    if chromium() is None:
        return 1
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch, opened(Path(scratch)) as browser, prepared() as site:
        for name, (view, shape) in PICTURES.items():
            tab = Tab(browser, site, shape)
            tab.hold_clock()
            tab.open(view.address)
            tab.page.screenshot(path=IMAGES / name, animations="disabled", caret="hide")
            tab.close()
            print(IMAGES / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
