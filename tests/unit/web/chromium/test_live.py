"""The page over a real coordinator, in Chromium: a job in each status, and what a person sees while it restarts."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from onceward.coordinator.client.session import connect
from onceward.coordinator.protocol.events import CloseReason
from onceward.coordinator.protocol.values import JobName
from onceward.coordinator.service.listen import parse_listen
from onceward.coordinator.web.page import Page
from tests.support.scripted import CoordinatorProcess, ScriptedDriver, free_port
from tests.support.waiting import wait_until
from tests.unit.web.browser import ON_DEMAND, Site, four_jobs, serving
from tests.unit.web.chromium.conftest import Opener
from tests.unit.web.chromium.tabs import Tab
from tests.unit.web.chromium.test_views import violations

pytestmark = pytest.mark.slow

STATUSES = {"orders": "halted", "running": "running", "restarting": "restarting", "finished": "finished"}


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with four_jobs(tmp_path_factory.mktemp("live")) as jobs:
        yield jobs.site


def finish(process: CoordinatorProcess, name: str) -> None:
    with connect(process.address) as client:
        driver = ScriptedDriver(client, JobName(name), settings=ON_DEMAND)
        driver.wait_committed(1)
        driver.close(CloseReason.FINISHED)


def notice(tab: Tab) -> str:
    return tab.js("document.getElementById('notice').hidden ? '' : document.getElementById('notice').textContent")  # type: ignore[no-any-return]


def sees(tab: Tab, what: str) -> Callable[[], bool]:
    return lambda: bool(tab.js("(what) => document.getElementById('live').textContent.includes(what)", what))


@pytest.mark.parametrize("job", STATUSES)
def test_a_job_is_shown_with_its_status_here_and_in_the_list(tab: Opener, live: Site, job: str) -> None:
    opened = tab(live)
    opened.open("/")
    row = opened.page.locator("tr").filter(has=opened.page.locator(f"#job-{job}"))
    row.locator(f".status.{STATUSES[job]}").wait_for()
    opened.page.locator(f"#job-{job}").click()
    opened.page.locator(f"h1 .status.{STATUSES[job]}").wait_for()
    assert opened.page.get_by_role("heading", name="A person must decide").count() == (STATUSES[job] == "halted")


def test_a_running_job_moves_on_without_a_reload(tab: Opener, live: Site) -> None:
    opened = tab(live)
    opened.open("/jobs/running")
    opened.js("window.loaded = true")
    first = opened.page.locator(".checkpoints tbody th").first.text_content()
    newest = opened.page.locator(".checkpoints tbody th").first
    wait_until(lambda: newest.text_content() != first, "a later checkpoint is shown")
    assert opened.js("window.loaded")


def test_a_page_says_that_its_coordinator_restarts_and_comes_back_by_itself(tab: Opener, tmp_path: Path) -> None:
    port, web = free_port(), free_port()
    address = f"127.0.0.1:{web}"
    with serving(tmp_path / "here", port=port, web=address) as (process, site):
        finish(process, "before")
        opened = tab(site)
        opened.open("/")
        opened.js("window.loaded = true")
        assert notice(opened) == ""
    wait_until(lambda: "does not answer" in notice(opened), "the page says so")
    assert sees(opened, "before")()
    assert violations(opened) == []
    with serving(tmp_path / "here", port=port, web=address) as (process, _):
        finish(process, "meanwhile")
        wait_until(sees(opened, "meanwhile"), "the page is up to date")
        assert notice(opened) == ""
    assert opened.js("window.loaded")


def test_a_page_whose_coordinator_stands_by_says_so_and_comes_back(tab: Opener, tmp_path: Path) -> None:
    port = free_port()
    with closing(Page(parse_listen("127.0.0.1:0"))) as page:
        page.attach(f"127.0.0.1:{port}", f"127.0.0.1:{port}")
        opened = tab(Site(int(page.url.rstrip("/").rpartition(":")[2])))
        opened.open("/")
        wait_until(lambda: "The coordinator does not answer now" in notice(opened), "the page says so")
        with serving(tmp_path / "here", port=port) as (process, _):
            finish(process, "orders")
            wait_until(sees(opened, "orders"), "the page is up to date")
            assert notice(opened) == ""


def test_a_hidden_tab_asks_nothing_and_is_up_to_date_when_it_is_shown(tab: Opener, live: Site) -> None:
    opened = tab(live)
    opened.hold_clock()
    opened.open("/")
    opened.refresh()
    turn = "(hidden) => { Object.defineProperty(document, 'hidden', {value: hidden, configurable: true}); " \
        "document.dispatchEvent(new Event('visibilitychange')); }"  # fmt: skip
    opened.js(turn, True)
    asked = len(opened.asked)
    opened.page.clock.run_for(600_000)
    assert len(opened.asked) == asked
    with opened.page.expect_request("**/"):
        opened.js(turn, False)
        opened.page.clock.run_for(1)
