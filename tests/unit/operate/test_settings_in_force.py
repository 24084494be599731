"""The options in force that a coordinator shows: all of them, and never a secret."""

import inspect
import itertools
from pathlib import Path

import pytest

from onceward.coordinator.service.listen import parse_listen
from onceward.operate import cli
from onceward.operate.settings_in_force import settings_of, without_secrets
from onceward.watch.web.page import published
from tests.support.commands import onceward
from tests.support.scripted import CoordinatorProcess

CANARY = "canary-0123456789"


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://onceward:{CANARY}@db.example.org/onceward",
        f"postgresql://onceward:{CANARY}@{CANARY}@db.example.org:5432/onceward?sslmode=verify-full",
        f"postgresql://:{CANARY}@db.example.org/onceward",
        f"postgresql://onceward:a/{CANARY}@db.example.org/onceward",
        f"postgresql://db.example.org/onceward?user=onceward&password={CANARY}",
        f"postgresql://db.example.org/onceward?sslpassword={CANARY}&sslmode=require",
        f"postgresql://db.example.org/onceward?PassWord = {CANARY}",
        f"host=db.example.org password={CANARY} dbname=onceward",
        f"s3://bucket/prefix?secret_access_key={CANARY}&session_token={CANARY}",
    ],
)
def test_a_planted_password_is_hidden_and_the_host_is_not(text: str) -> None:
    shown = without_secrets(text)
    assert CANARY not in shown
    assert "***" in shown
    assert shown.partition("?")[0].count("db.example.org") == text.partition("?")[0].count("db.example.org")


@pytest.mark.parametrize(
    "text",
    [
        *("postgresql://onceward@db.example.org:5432/onceward?options=-csearch_path%3Dorders", "127.0.0.1:7878"),
        *("sqlite:////var/lib/onceward/store.db", "unix:/run/onceward/coordinator.sock", "env:PASSWORD", "[::1]:0"),
    ],
)
def test_what_has_no_secret_is_shown_as_it_is(text: str) -> None:
    assert without_secrets(text) == text


def test_what_is_not_given_is_empty_and_a_switch_is_on_or_off() -> None:
    shown = settings_of({"tls_cert": None, "advertise": "", "traces": True, "reflection": False, "rights": Path("a")})
    assert [(one.name, one.value) for one in shown] == [
        *(("tls-cert", ""), ("advertise", ""), ("traces", "on"), ("reflection", "off"), ("rights", "a"))
    ]


@pytest.mark.slow
def test_a_coordinator_shows_every_option_of_serve(tmp_path: Path) -> None:
    process = CoordinatorProcess(tmp_path / "here", options=["--reflection"]).wait_ready()
    try:
        listed = onceward("coordinators", "--coordinator", process.address)
        options = {f"--{name.replace('_', '-')}" for name in inspect.signature(cli.serve).parameters}
        lines = listed.stdout.splitlines()
        table = itertools.dropwhile(lambda line: not line.startswith("option in force"), lines)
        shown = dict(line.split()[:2] for line in list(table)[1:])
        assert shown.keys() == options
        assert (shown["--reflection"], shown["--traces"], shown["--rights"]) == ("on", "off", "-")
        assert shown["--store"] == process.store_url
    finally:
        process.end()


@pytest.mark.parametrize(
    ("page", "listen", "advertise", "shown"),
    [
        ("http://127.0.0.1:7879/", "127.0.0.1:7878", "", "http://127.0.0.1:7879/"),
        ("http://127.0.0.1:7879/", "0.0.0.0:7878", "a.example:7878", ""),  # elsewhere, it would be the visitor's own
        ("http://127.0.0.1:7879/", "10.0.0.1:7878", "", ""),
        ("https://0.0.0.0:7879/", "0.0.0.0:7878", "a.example:7878", "https://a.example:7879/"),
        ("https://[::]:7879/", "[::]:7878", "[fd00::1]:7878", "https://[fd00::1]:7879/"),
        ("https://0.0.0.0:7879/", "0.0.0.0:7878", "", ""),  # how others reach this machine is unknown
        ("https://0.0.0.0:7879/", "10.0.0.1:7878", "", "https://10.0.0.1:7879/"),
        ("https://0.0.0.0:7879/", "unix:/tmp/s", "", ""),
        ("https://page.example:7879/", "0.0.0.0:7878", "", "https://page.example:7879/"),
    ],
)
def test_a_page_is_published_only_under_an_address_that_leads_to_it_from_elsewhere(
    page: str, listen: str, advertise: str, shown: str
) -> None:
    assert published(page, parse_listen(listen, anywhere=True), advertise) == shown
