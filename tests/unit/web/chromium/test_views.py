"""Every view in Chromium: what is wrong in it for eyes, for a keyboard and for other tools."""

import re
from collections.abc import Iterator
from datetime import timedelta
from functools import partial

import pytest
from axe_playwright_python.sync_playwright import Axe

from onceward.common.printable import printable
from tests.unit.web.browser import Site
from tests.unit.web.chromium.conftest import Opener
from tests.unit.web.chromium.prepared import NOW, prepared, with_every_text
from tests.unit.web.chromium.tabs import Tab
from tests.unit.web.chromium.views import SHAPES, VIEWS, Shape, View

pytestmark = [pytest.mark.slow, pytest.mark.long]

NARROW = SHAPES[2]
MARKUP = "<script>ran=1</script><img src=x onerror=ran=1>\"'</td></main><b id=broke>&lt;\u202e\x1b[2J"

every_view = pytest.mark.parametrize("view", VIEWS, ids=str)
every_refreshed_view = pytest.mark.parametrize("view", [one for one in VIEWS if one.refreshed], ids=str)


def violations(tab: Tab) -> list[str]:
    """What axe-core finds that keeps people from using the page."""
    found = Axe().run(tab.page).response
    assert any(one["id"] == "color-contrast" for one in found["passes"])
    return [
        f"{one['id']}: {node['html'][:120]} {node['failureSummary']}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


@every_view
def test_axe_finds_nothing_serious(tab: Opener, site: Site, view: View) -> None:
    opened = tab(site)
    opened.hold_clock()
    opened.open(view.address)
    for shape in (SHAPES[0], SHAPES[-1]) if view.drawn else (SHAPES[-1],):  # each width and each scheme
        opened.shape(shape)
        assert (shape.name, violations(opened)) == (shape.name, [])


@every_view
def test_no_text_leaves_its_box_and_a_page_380_px_wide_scrolls_only_downwards(
    tab: Opener, site: Site, view: View
) -> None:
    opened = tab(site)
    opened.open(view.address)
    for shape in (SHAPES[0], NARROW):
        opened.shape(shape)
        found = opened.js(
            """() => [...document.querySelectorAll("dd, td, th, .chips a")].filter(
              (one) => one.scrollWidth > one.clientWidth + 1 && one.clientWidth).map((one) => one.textContent.trim())"""
        )
        assert found == [], shape
    outside = opened.js(
        """() => [...document.body.querySelectorAll("*")].filter((one) => {
          const place = one.getBoundingClientRect();
          return !one.closest(".scroll > *, .skip") && place.width && place.left >= 0 && place.right > innerWidth + 1;
        }).map((one) => one.outerHTML.slice(0, 120))"""
    )
    assert outside == []
    assert opened.js("document.documentElement.scrollWidth") <= NARROW.width


@pytest.mark.parametrize(
    ("view", "shape"),
    [(view, shape) for view in VIEWS for shape in (SHAPES[0], NARROW) if view.drawn or shape is NARROW],
    ids=str,
)
def test_everything_is_reached_by_tab_and_shows_that_it_has_the_focus(
    tab: Opener, site: Site, view: View, shape: Shape
) -> None:
    opened = tab(site, shape)
    opened.hold_clock()
    opened.open(view.address)
    reached = []
    while True:
        opened.page.keyboard.press("Tab")
        focused = opened.focused()
        if focused["tag"] == "BODY" or focused["number"] in reached:
            break
        assert focused["marked"], focused
        assert focused["seen"], focused
        reached.append(focused["number"])
    assert reached == list(range(focused["of"]))


def test_the_first_tab_leads_past_the_header(tab: Opener, site: Site) -> None:
    opened = tab(site)
    opened.open("/")
    opened.page.keyboard.press("Tab")
    assert opened.focused()["text"] == "Skip to the content"
    opened.page.keyboard.press("Enter")
    opened.page.keyboard.press("Tab")
    assert opened.focused()["text"] == "all"


@every_refreshed_view
def test_the_focus_survives_a_refresh(tab: Opener, site: Site, view: View) -> None:
    opened = tab(site)
    opened.hold_clock()
    opened.open(view.address)
    for number in range(opened.focused()["of"]):
        opened.page.keyboard.press("Tab")
        before = opened.focused()
        assert before["number"] == number
        if before["tag"] == "BUTTON" and number:  # nothing is replaced under a finger
            continue
        opened.refresh()
        assert opened.focused() == before


def test_a_form_is_not_replaced_under_a_person(tab: Opener, site: Site) -> None:
    opened = tab(site)
    opened.hold_clock()
    (form,) = (view for view in VIEWS if not view.refreshed)
    opened.open(form.address)
    opened.page.fill("#token", "half a token")
    opened.page.clock.run_for(60_000)
    assert opened.page.input_value("#token") == "half a token"


@every_view
def test_times_are_local_with_utc_in_the_title(tab: Opener, site: Site, view: View) -> None:
    opened = tab(site)
    opened.open(view.address)
    times = opened.js(
        """() => [...document.querySelectorAll("time")].map(
          (one) => [one.dateTime, one.title, "local" in one.dataset, one.textContent])"""
    )
    for iso, title, local, text in times:
        day, moment = iso.removesuffix("+00:00").split("T")
        assert title == f"{day} {moment} UTC"
        assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d" if local else r"[\d.]+ \w+( \d+ \w+)?( ago)?", text), text
    read = opened.page.locator(".read time")
    if read.count():
        assert read.text_content() == f"{NOW + timedelta(hours=5.5):%Y-%m-%d %H:%M:%S}"
        assert read.get_attribute("title") == f"{NOW:%Y-%m-%d %H:%M:%S}.000 UTC"


@pytest.fixture(scope="module")
def hostile() -> Iterator[Site]:
    """The prepared jobs, with markup in every text."""
    with prepared(partial(with_every_text, change=lambda text: text and text + MARKUP)) as site:
        yield site


@every_refreshed_view
def test_markup_in_texts_is_shown_and_never_obeyed(tab: Opener, hostile: Site, view: View) -> None:
    opened = tab(hostile)
    opened.hold_clock()
    opened.open(view.address)
    elements = "() => [...document.querySelectorAll('*')].map((one) => one.tagName)"
    for when in ("as served", "as replaced"):
        assert opened.js("window.ran === undefined && !document.querySelector('img, #broke, main script')"), when
        assert not opened.js("/[\\u202e\\x1b]/.test(document.documentElement.outerHTML)")
        shown = opened.page.locator("main").text_content() or ""
        if view.name in ("jobs", "restarting", "halted", "checkpoint", "losses", "orphan", "coordinators"):
            assert printable(MARKUP) in shown
        before = opened.js(elements)
        opened.refresh()
        assert opened.js(elements) == before


def test_markup_in_an_address_is_shown_and_never_obeyed(tab: Opener, site: Site) -> None:
    opened = tab(site)
    opened.open("/?q=%22%3E%3Cscript%3Eran=1%3C/script%3E%3Cimg src=x onerror=ran=1%3E")
    assert opened.js("window.ran === undefined && !document.querySelector('img, main script')")
    assert opened.page.locator("#q").input_value().startswith('"><script>')


def test_a_command_to_copy_is_copied(tab: Opener, site: Site) -> None:
    opened = tab(site, permissions=["clipboard-read", "clipboard-write"])
    opened.open("/jobs/clicks-eu")
    choice = opened.page.locator(".choice").first
    choice.get_by_role("button", name="Copy").click()
    choice.get_by_role("button", name="Copied").wait_for()
    assert opened.js("navigator.clipboard.readText()") == choice.locator("code").text_content()
