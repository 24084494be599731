"""A person signs in and out through the page's forms, in Chromium."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from tests.unit.web.test_sign_in import ORDERS, secured


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with secured(tmp_path_factory.mktemp("secured")) as place:
        yield place.url


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(ignore_https_errors=True)
    context.set_default_timeout(60_000)
    yield context.new_page()
    context.close()


@pytest.mark.slow
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_a_person_signs_in_and_out_through_the_forms(page: Page, url: str, host: str) -> None:
    address = url.replace("127.0.0.1", host)
    page.goto(f"{address}?sort=name")
    page.fill("#token", ORDERS)
    page.get_by_role("button", name="Sign in").click()
    out = page.get_by_role("button", name="Sign out")
    out.wait_for()
    assert page.url.startswith(address)
    out.click()
    page.locator("form.sign-in").wait_for()


@pytest.mark.slow
def test_a_form_on_another_site_signs_no_person_in(page: Page, url: str, tmp_path: Path) -> None:
    other = tmp_path / "other.html"
    other.write_text(f'<form method=post action="{url}sign-in"><input name=token value="{ORDERS}"><button>Go</button>')
    page.goto(other.as_uri())
    page.get_by_role("button", name="Go").click()
    page.get_by_text("sent by another site").wait_for()
    assert page.context.cookies() == []
