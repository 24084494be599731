"""The page over a real coordinator, in Chromium: a job in each status, and what a person sees while it restarts."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Request

from onceward.client.session import connect
from onceward.common.errors import RefusedError
from onceward.common.readable import age, duration
from onceward.coordinator.service.listen import parse_listen
from onceward.protocol.events import CloseReason
from onceward.protocol.values import JobName
from onceward.watch.web import streams
from onceward.watch.web.page import Page
from onceward.watch.web.streams import MAX_STREAMS
from tests.support.scripted import CoordinatorProcess, ScriptedDriver, free_port
from tests.support.waiting import wait_until
from tests.unit.web.browser import ON_DEMAND, Site, four_jobs, serving
from tests.unit.web.chromium.conftest import Opener
from tests.unit.web.chromium.prepared import NOW, prepared
from tests.unit.web.chromium.tabs import Tab
from tests.unit.web.chromium.test_views import violations

pytestmark = [pytest.mark.slow, pytest.mark.long]

SCRIPTED = ("eventsource", "fetch")
"""What the script asks for, as Chromium calls it."""
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


def streams_of(request: Request) -> bool:
    return request.resource_type == "eventsource"


def aged(at: datetime, kind: str, now: datetime) -> str:
    if kind == "ago":
        return age(at, now) if (now - at).total_seconds() >= 1 else "now"
    seconds = (now - at if kind == "since" else at - now).total_seconds()
    return duration(max(0.0, seconds))


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
    assert (opened.js("window.loaded"), opened.polled) == (True, 0)


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
    with opened.page.expect_request(streams_of):
        opened.open("/")
    opened.hide(True)
    asked = len(opened.asked)
    opened.page.clock.run_for(600_000)
    assert len(opened.asked) == asked
    with opened.page.expect_request(streams_of):
        opened.hide(False)


def test_a_visitor_whose_token_is_known_no_more_is_asked_to_sign_in(tab: Opener) -> None:
    revoked: list[bool] = []

    def answered(answer: Any) -> Any:
        if revoked:
            error = RefusedError("The coordinator does not know this token.")
            error.code = "UNAUTHENTICATED"
            raise error
        return answer

    with prepared(answered) as site:
        opened = tab(site)
        with opened.page.expect_request(streams_of):
            opened.open("/jobs/clicks-eu")
        revoked.append(True)
        opened.page.locator("form.sign-in").wait_for()


def test_a_stream_whose_time_is_over_is_followed_by_the_next_without_a_word(
    tab: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "LONGEST_S", 0.0)
    with prepared() as site:
        opened = tab(site)
        opened.open("/")
        opened.js(
            "window.said = []; new MutationObserver(() => window.said.push(1)).observe(notice, {attributes: true})"
        )
        wait_until(lambda: opened.js("true") and len(opened.asked) > 6, "several streams have begun")
        assert (opened.polled, notice(opened)) == (0, "")
        assert not opened.js("window.said.some(() => !notice.hidden)")


def test_a_visitor_without_a_stream_has_the_page_too(tab: Opener, tmp_path: Path) -> None:
    with serving(tmp_path / "here") as (process, site), ExitStack() as stack:
        for _ in range(MAX_STREAMS):
            stack.enter_context(site.stream("/"))
        opened = tab(site)
        opened.open("/")
        finish(process, "orders")
        wait_until(sees(opened, "orders"), "the page is up to date")
        assert (opened.polled > 0, notice(opened)) == (True, "")


@pytest.mark.parametrize("address", ["/", "/jobs/clicks-eu", "/jobs/sessions", "/cluster"])
def test_ages_go_on_as_the_server_writes_them(tab: Opener, address: str) -> None:
    """While nothing is heard from it."""
    with prepared() as site:
        opened = tab(site)
        opened.page.route(
            "**/*", lambda route: route.abort() if route.request.resource_type in SCRIPTED else route.continue_()
        )
        opened.page.clock.set_fixed_time(NOW)
        opened.open(address)
        times = """[...document.querySelectorAll("time[data-age]")].map(
          (one) => [one.dateTime, one.dataset.age, one.textContent])"""
        before = opened.js(times)
        assert before
        for later in (timedelta(0), timedelta(seconds=61), timedelta(hours=27, minutes=3)):
            opened.page.clock.set_fixed_time(NOW + later)
            expected = [[at, kind, aged(datetime.fromisoformat(at), kind, NOW + later)] for at, kind, _ in before]
            assert later or before == expected
            wait_until(lambda expected=expected: opened.js(times) == expected, "the ages are written again")  # type: ignore[misc]
