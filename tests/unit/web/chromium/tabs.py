"""Chromium, and tabs that report everything a page must not do."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from playwright.sync_api import Browser, Dialog, Page, Request, sync_playwright

from benchmarks.chromium import chromium
from tests.support.waiting import wait_until
from tests.unit.web.browser import Site
from tests.unit.web.chromium.views import Shape

__all__ = ["Tab", "opened"]

_ZONE = "Asia/Kolkata"
"""Five and a half hours before UTC, all year."""
_LISTEN = """
window.refusals = [];
document.addEventListener("securitypolicyviolation", (event) => window.refusals.push(event.violatedDirective));
"""


@contextmanager
def opened(scratch: Path) -> Iterator[Browser]:
    """Chromium, with its profile in ``scratch``. It ends with this process, however that ends."""
    with patch.dict(os.environ, {"TMPDIR": str(scratch)}), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium())
        try:
            yield browser
        finally:
            browser.close()


class Tab:
    """One tab in a context of its own. `close` raises AssertionError if the page did what no page may do."""

    def __init__(self, browser: Browser, site: Site, shape: Shape, **options: Any) -> None:
        self._context = browser.new_context(
            base_url=f"http://127.0.0.1:{site.port}",
            viewport={"width": shape.width, "height": 800},
            color_scheme=shape.scheme,  # type: ignore[arg-type]
            timezone_id=_ZONE,
            reduced_motion="reduce",
            **options,
        )
        self._context.add_init_script(_LISTEN)
        self.page: Page = self._context.new_page()
        self.page.set_default_timeout(60_000)
        self.asked: list[str] = []
        """The paths that it asked for."""
        self.polled = 0
        """How often the script asked for a page."""
        self._problems: list[str] = []
        self._site = site
        self.page.on("request", self._ask)
        self.page.on("pageerror", lambda error: self._problems.append(f"error: {error}"))
        self.page.on("dialog", self._dismiss)
        self.page.on("console", lambda said: self._hear(said.type, said.text))

    def open(self, address: str) -> None:
        self.page.goto(address)

    def shape(self, shape: Shape) -> None:
        self.page.set_viewport_size({"width": shape.width, "height": 800})
        self.page.emulate_media(color_scheme=shape.scheme)  # type: ignore[arg-type]

    def js(self, code: str, *given: Any) -> Any:
        """What the page's own world says."""
        return self.page.evaluate(code, *given)

    def hide(self, hidden: bool) -> None:
        """What happens when a person turns to another tab, or back to this one."""
        self.js(_TURN, hidden)

    def refresh(self) -> None:
        """Return when the content is replaced: who comes back to a tab gets the page as it is then. Needs
        `hold_clock`."""
        self.js("document.getElementById('live').firstElementChild.dataset.former = ''")
        self.hide(True)
        self.hide(False)
        wait_until(self._replaced, "the content is replaced")

    def hold_clock(self) -> None:
        """The page's time stands still. Call it before `open`."""
        self.page.clock.install()

    def focused(self) -> Mapping[str, Any]:
        """What has the focus: which one of all that can have it, its text, and how it is marked."""
        found: Mapping[str, Any] = self.js(_FOCUSED)
        return found

    def check(self) -> None:
        problems = self._problems + [f"refused: {one}" for one in self.js("window.refusals")]
        assert problems == []

    def close(self) -> None:
        try:
            self.check()
        finally:
            self._context.close()

    def _replaced(self) -> bool:
        self.page.clock.run_for(1000)  # an error has no stream: the script asks again after a while
        return not self.js("document.querySelector('[data-former]')")

    def _ask(self, request: Request) -> None:
        origin = f"http://127.0.0.1:{self._site.port}"
        if request.url.startswith(f"{origin}/"):
            self.asked.append(request.url.removeprefix(origin))
            self.polled += request.resource_type == "fetch"
        elif not request.url.startswith("data:,"):
            self._problems.append(f"asked elsewhere: {request.url}")

    def _dismiss(self, dialog: Dialog) -> None:
        self._problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _hear(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and not text.startswith("Failed to load resource"):  # an error's status
            self._problems.append(f"{kind}: {text}")


_TURN = """(hidden) => {
  Object.defineProperty(document, "hidden", {value: hidden, configurable: true});
  document.dispatchEvent(new Event("visibilitychange"));
}"""
_FOCUSED = """() => {
  const kinds = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']";
  const one = document.activeElement;
  const all = [...document.querySelectorAll(kinds)].filter((each) => each.checkVisibility());
  const style = getComputedStyle(one);
  const place = one.getBoundingClientRect();
  return {
    number: all.indexOf(one), of: all.length, tag: one.tagName, text: one.textContent.trim().slice(0, 60),
    marked: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
    seen: place.right > 0 && place.bottom > 0 && place.left < innerWidth && place.top < innerHeight,
  };
}"""
