"""One Chromium for the tests here, and what they open in it."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Protocol

import pytest
from playwright.sync_api import Browser

from benchmarks.chromium import chromium
from tests.unit.web.browser import Site
from tests.unit.web.chromium.prepared import prepared
from tests.unit.web.chromium.tabs import Tab, opened
from tests.unit.web.chromium.views import SHAPES, Shape


class Opener(Protocol):
    def __call__(self, site: Site, shape: Shape = ..., **options: Any) -> Tab: ...


# Not for the whole session: while Playwright runs, no other test of the same thread can run an event loop.
@pytest.fixture(scope="package")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    if chromium() is None:
        pytest.skip("Chromium is missing; sh scripts/chromium.sh says how to install it")
    with opened(tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture(scope="package")
def site() -> Iterator[Site]:
    """The prepared jobs."""
    with prepared() as site:
        yield site


@pytest.fixture
def tab(browser: Browser) -> Iterator[Opener]:
    """Opens tabs, each in a context of its own: ``tab(site, shape)``. At the end it checks each."""
    with ExitStack() as stack:

        def make(site: Site, shape: Shape = SHAPES[0], **options: Any) -> Tab:
            made = Tab(browser, site, shape, **options)
            stack.callback(made.close)
            return made

        yield make
