"""The page of a coordinator with TLS: it asks of a visitor what the coordinator asks of a client."""

import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from urllib.parse import urlencode

import httpx
import pytest

from onceward.client.session import connect
from onceward.client.tls import CoordinatorTls
from onceward.common.errors import ExitCode
from onceward.coordinator.service.rights import digest_of
from onceward.protocol.events import CloseReason
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import JobName
from onceward.watch.web.visitors import SESSION_S, Sessions
from tests.support.commands import onceward_process
from tests.support.peers import PeerFiles
from tests.support.scripted import CoordinatorProcess, ScriptedDriver
from tests.support.waiting import wait_until

pytestmark = pytest.mark.slow

ORDERS, ALL, DRIVER, STRANGER = (f"{who}-0123456789-0123456789" for who in ("orders", "all", "driver", "stranger"))
ON_DEMAND = CheckpointSettings(interval=None, tolerable_failed_checkpoints=1000)


def hashed(token: str) -> str:
    return f"sha256:{digest_of(token).hex()}"


def rights(*, orders: str = ORDERS) -> str:
    return f"""
        [peers.orders]
        tokens = ["{hashed(orders)}"]
        view = ["orders"]
        [peers.all]
        tokens = ["{hashed(ALL)}"]
        view = ["*"]
        [peers.driver]
        tokens = ["{hashed(DRIVER)}"]
        drive = ["*"]
    """


@dataclass(frozen=True)
class Secured:
    files: PeerFiles
    process: CoordinatorProcess
    url: str

    def visitor(self, tls: CoordinatorTls | None = None, token: str = "") -> httpx.Client:
        headers = {"authorization": f"Bearer {token}"} if token else {}
        return httpx.Client(
            base_url=self.url, verify=(tls or self.files.client_tls()).context(), headers=headers, timeout=60
        )


@contextmanager
def secured(directory: Path, *, client_ca: bool = False, granted: bool = True) -> Iterator[Secured]:
    directory.mkdir(exist_ok=True)
    files = PeerFiles(directory / "peers")
    tls = files.server_tls(client_ca=client_ca)
    options = ["--tls-cert", str(tls.certificate), "--tls-key", str(tls.key), "--web", "127.0.0.1:0"]
    if client_ca:
        options += ["--client-ca", str(files.ca)]
    if granted:
        files.grant(rights())
        options += ["--rights", str(files.rights)]
    process = CoordinatorProcess(directory / "coordinator", options=options)
    try:
        wait_until(lambda: "listens on" in process.log.read_text() or not process.running, "it listens")
        found = re.search(r"the page is at (https://\S+)", process.log.read_text())
        assert found is not None, process.tail()
        yield Secured(files, process, found[1])
    finally:
        process.end()


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A coordinator with rights and two jobs, orders and others."""
    directory = tmp_path_factory.mktemp("secured")
    with secured(directory) as found, pytest.MonkeyPatch.context() as environment:
        environment.setenv("THE_DRIVER", DRIVER)
        with connect(found.process.address, tls=found.files.client_tls(), token="env:THE_DRIVER") as client:
            for job in ("orders", "others"):
                driver = ScriptedDriver(client, JobName(job), settings=ON_DEMAND)
                driver.wait_committed(1)
                driver.close(CloseReason.FINISHED)
        yield found


def test_who_shows_no_token_that_may_view_sees_nothing(place: Secured) -> None:
    with place.visitor() as unknown, place.visitor(token=STRANGER) as stranger:
        for path in ("/", "/cluster", "/jobs/orders", "/jobs/orders/checkpoints/1", "/jobs/absent"):
            for visitor in (unknown, stranger):
                answer = visitor.get(path)
                assert answer.status_code == 401, path
                assert 'action="/sign-in"' in answer.text
                assert 'id="job-' not in answer.text
        refused = unknown.get("/", headers={"accept": "application/json"})
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert set(refused.json()) == {"error"}


def test_a_token_shows_the_jobs_that_it_may_view(place: Secured) -> None:
    with place.visitor(token=ALL) as everything, place.visitor(token=ORDERS) as orders:
        both = ["orders", "others"]
        for visitor, names in ((everything, both), (orders, ["orders"]), (everything, both)):
            found = visitor.get("/?sort=name", headers={"accept": "application/json"}).json()
            assert [job["job"] for job in found["jobs"]] == names
        assert everything.get("/jobs/others/checkpoints/1").status_code == 200
        for path in ("/jobs/others", "/jobs/others/checkpoints/1"):
            assert orders.get(path).status_code == 403
        assert orders.get("/jobs/absent").status_code in {403, 404}


def test_a_browser_shows_its_token_once_and_never_keeps_it(place: Secured) -> None:
    with place.visitor() as browser:
        assert browser.post("/sign-in", data={"token": STRANGER}).status_code == 401
        assert browser.post("/sign-in", data={"token": "<b>x"}).status_code == 401
        signed_in = browser.post("/sign-in", data={"token": ORDERS, "back": "/jobs/orders"})
        assert (signed_in.status_code, signed_in.headers["location"]) == (303, "/jobs/orders")
        cookie = signed_in.headers["set-cookie"]
        assert ORDERS not in cookie
        assert cookie.startswith("__Host-onceward=")
        assert all(rule in cookie.lower() for rule in ("httponly", "secure", "samesite=strict", "path=/"))
        assert "domain" not in cookie.lower()
        page = browser.get("/jobs/orders")
        assert page.status_code == 200
        assert 'action="/sign-out"' in page.text
        name = browser.cookies["__Host-onceward"]
        assert browser.post("/sign-out").status_code == 303
        assert browser.get("/").status_code == 401
        # a copy of the cookie is worth nothing afterwards
        assert browser.get("/", headers={"cookie": f"__Host-onceward={name}"}).status_code == 401


@pytest.mark.parametrize("back", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:x", ""])
def test_signing_in_leads_nowhere_else(place: Secured, back: str) -> None:
    with place.visitor() as browser:
        answer = browser.post("/sign-in", data={"token": ORDERS, "back": back})
        assert (answer.status_code, answer.headers["location"]) == (303, "/")


@pytest.mark.parametrize(
    "evil",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "null", "sec-fetch-site": "cross-site"},
        {"origin": "https://other.page.example", "sec-fetch-site": "same-site"},
    ],
)
def test_forms_of_other_sites_are_refused(place: Secured, evil: dict[str, str]) -> None:
    own = place.url.rstrip("/")
    with place.visitor() as browser:
        assert browser.post("/sign-in", data={"token": ORDERS}, headers=evil).status_code == 403
        assert not browser.cookies
        assert browser.post("/sign-in", data={"token": ORDERS}, headers={"origin": own}).status_code == 303
        name = browser.cookies["__Host-onceward"]
        assert browser.post("/sign-out", headers=evil).status_code == 403
        assert browser.cookies["__Host-onceward"] == name
        assert browser.get("/").status_code == 200


def test_a_form_is_bounded_and_malformed_ones_are_refused(place: Secured) -> None:
    with place.visitor() as browser:
        assert browser.post("/sign-in", content=urlencode({"token": "x" * 5000})).status_code == 413
        for body in (b"", b"\xff\xfe", b"token=", b"token=a&token=b"):
            assert browser.post("/sign-in", content=body).status_code == 401
        assert not browser.cookies


def test_the_sessions_of_a_removed_token_end(tmp_path: Path) -> None:
    with secured(tmp_path) as place, place.visitor() as browser:
        browser.post("/sign-in", data={"token": ORDERS})
        assert browser.get("/").status_code == 200
        place.files.grant(rights(orders=STRANGER))
        wait_until(lambda: browser.get("/").status_code == 401, "its token is known no more")
        assert "does not know your token any more" in browser.get("/").text


def test_a_stream_asks_for_a_token_and_ends_with_the_session(place: Secured) -> None:
    as_stream = {"accept": "text/event-stream"}
    with place.visitor() as browser, place.visitor(token=ORDERS) as program:
        assert browser.get("/", headers=as_stream).status_code == 401
        browser.post("/sign-in", data={"token": ORDERS})
        with (
            program.stream("GET", "/", headers=as_stream) as others,  # both have the same looks
            browser.stream("GET", "/", headers=as_stream) as stream,
        ):
            assert others.status_code == 200
            lines = stream.iter_lines()
            page = list(takewhile(lambda line: line != "event: read", lines))
            assert any('id="job-orders"' in line for line in page)
            assert not any('id="job-others"' in line for line in page)
            browser.post("/sign-out")
            assert sum(line == "event: read" for line in lines) <= 2, "it does not last as long as others"
        assert browser.get("/", headers=as_stream).status_code == 401


def test_with_client_ca_a_visitor_needs_a_certificate_and_with_rights_a_token_too(tmp_path: Path) -> None:
    for granted, expected in ((False, 200), (True, 401)):
        with secured(tmp_path / str(granted), client_ca=True, granted=granted) as place:
            files = place.files
            with place.visitor() as unknown, pytest.raises(httpx.TransportError):
                unknown.get("/")
            known = files.issued_to("visitor", dns=["visitor.example"])
            with place.visitor(tls=known) as visitor:
                assert visitor.get("/").status_code == expected
            with place.visitor(tls=known, token=ALL) as visitor:
                assert visitor.get("/").status_code == 200


def test_a_replaced_certificate_is_used_at_once(tmp_path: Path) -> None:
    with secured(tmp_path) as place:
        with place.visitor(token=ALL) as before:
            assert before.get("/").status_code == 200
        renewed = PeerFiles(tmp_path / "renewed")
        own = place.files.server_tls()
        for old, new in ((own.key, "server.key"), (own.certificate, "server.pem")):
            old.write_bytes((renewed.directory / new).read_bytes())
        with place.visitor(tls=renewed.client_tls(), token=ALL) as after:
            assert after.get("/").status_code == 200


def test_silent_and_malformed_handshakes_are_bounded(place: Secured) -> None:
    host, port = place.url.removeprefix("https://").rstrip("/").rsplit(":", 1)
    with ExitStack() as stack:
        for number in range(100):
            one = stack.enter_context(closing(socket.create_connection((host, int(port)))))
            if number % 2:
                with suppress(OSError):  # it is closed already
                    one.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    context = place.files.client_tls().context()

    def answers() -> bool:
        try:
            raw = socket.create_connection((host, int(port)), timeout=60)
            with context.wrap_socket(raw, server_hostname=host) as encrypted:
                encrypted.sendall(b"GET /style.css HTTP/1.1\r\nHost: x\r\n\r\n")
                return encrypted.recv(15) == b"HTTP/1.1 200 OK"
        except OSError:
            return False

    wait_until(answers, "the page is served again")


def test_a_site_may_have_any_name_that_its_certificate_has(place: Secured) -> None:
    with place.visitor(token=ALL) as visitor:
        assert visitor.get("/", headers={"host": "coordinator.example"}).status_code == 200


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--web", "0.0.0.0:0", "--tls-cert", "CERT", "--tls-key", "KEY"), "visitors prove nothing"),
        (("--web", "127.0.0.1:0", "--listen", "unix:SOCKET", "--rights", "RIGHTS"), "needs --tls-cert and --tls-key"),
    ],
)
def test_what_would_show_jobs_to_others_is_refused(tmp_path: Path, options: tuple[str, ...], says: str) -> None:
    files = PeerFiles(tmp_path / "peers")
    files.grant(rights())
    tls = files.server_tls()
    places = {"CERT": tls.certificate, "KEY": tls.key, "RIGHTS": files.rights, "SOCKET": tmp_path / "s"}
    given = [re.sub("CERT|KEY|RIGHTS|SOCKET", lambda found: str(places[found[0]]), word) for word in options]
    listen = [] if "--listen" in given else ["--listen", "127.0.0.1:0"]
    result = onceward_process("serve", *listen, "--store", f"sqlite:///{tmp_path / 'store.db'}", *given)
    assert (result.returncode, says in result.stderr) == (ExitCode.USAGE, True), result.stderr
    assert not (tmp_path / "store.db").exists()


def test_sessions_end_after_their_time_and_the_oldest_when_there_are_too_many() -> None:
    now = [0.0]
    sessions = Sessions(lambda: now[0])
    first = sessions.begin(ORDERS)
    now[0] = SESSION_S - 1
    assert sessions.token(first) == ORDERS
    assert sessions.token("") == sessions.token(first + "x") == ""
    now[0] = SESSION_S
    assert sessions.token(first) == ""
    oldest = sessions.begin(ORDERS)
    newest = [sessions.begin(ALL) for _ in range(1000)]
    assert (sessions.token(oldest), sessions.token(newest[0])) == ("", ALL)
