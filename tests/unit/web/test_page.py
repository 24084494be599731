"""The page of ``onceward serve --web``, over HTTP: what it shows, and what it refuses."""

import asyncio
import html
import json
import os
import re
import shlex
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import pytest

from onceward.client.session import connect
from onceward.common.errors import ConfigurationError, CoordinatorLostError, ExitCode
from onceward.coordinator.service.listen import parse_listen
from onceward.coordinator.service.server import CoordinatorServer, ServerOptions
from onceward.coordinator.store.database import StoreKind
from onceward.operate.serve import page_of
from onceward.protocol.events import CloseReason
from onceward.protocol.read_progress import PartitionLag, ReadProgress
from onceward.protocol.values import CheckpointId, JobName
from onceward.watch.web.application import HEADERS
from onceward.watch.web.page import Page, require_installed
from onceward.watch.web.reading import Reader
from onceward.wire.rows import Leader
from tests.support.commands import onceward, onceward_process
from tests.support.scripted import SINK, ScriptedDriver, free_port
from tests.support.waiting import wait_until
from tests.unit.web.browser import OFTEN, ON_DEMAND, Answer, FourJobs, Site, four_jobs, serving

pytestmark = pytest.mark.slow

T = TypeVar("T")

MARKUP = "<script>alert('x')</script><b onclick=x>\u202e & \x1b[2J"
LAG = 2_500


def progress(lag: int) -> ReadProgress:
    partitions = [PartitionLag(partition=f"<b>-{n}", position=10 + n, lag=n) for n in range(71)]
    partitions.append(PartitionLag(partition="away-0", position=4, lag=None))
    return ReadProgress(lag=lag, measured_ago=timedelta(0), records_per_second=80.0, partitions=partitions)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FourJobs]:
    with four_jobs(tmp_path_factory.mktemp("page"), failed=f"it failed: {MARKUP}") as jobs:
        for lag in (900, LAG):
            jobs.running.session.report_progress(lambda lag=lag: progress(lag))  # type: ignore[misc]
            jobs.running.session.renew()
        yield jobs


def shows(site: Site, path: str, seen: Callable[[Answer], bool], what: str) -> Answer:
    """Get the page until it shows that: an answer is kept for a moment."""
    found: list[Answer] = []

    def look() -> bool:
        found[:] = [site.get(path)]
        return seen(found[0])

    wait_until(look, what)
    return found[0]


def asked(connection: socket.socket) -> bytes:
    """The first line of the answer on a connection; empty if it was closed."""
    connection.settimeout(60)
    try:
        connection.sendall(b"GET /style.css HTTP/1.1\r\nHost: localhost\r\n\r\n")
        return connection.recv(1000).partition(b"\r\n")[0]
    except ConnectionError:
        return b""


def newest(answer: Answer) -> int:
    return int(re.findall(r'<a id="checkpoint-(\d+)"', answer.live)[0])


def test_the_overview_shows_every_job_those_that_need_a_person_first(place: FourJobs) -> None:
    answer = shows(place.site, "/", lambda answer: 'class="status restarting"' in answer.live, "the job restarts")
    rows = re.findall(r'<a id="job-(\w+)" href="/jobs/\1">.*?<span class="status (\w+)">\2</span>', answer.live)
    others = [(name, name) for name in ("restarting", "running", "finished")]
    assert rows == [("orders", "halted"), *others]
    assert "a person to decide" in answer.live
    assert "its driver, which announced its return" in answer.live


def test_a_running_job_shows_its_checkpoints_as_bars_that_go_on(place: FourJobs) -> None:
    first = shows(place.site, "/jobs/running", lambda answer: '<rect class="settle"' in answer.live, "it is settled")
    assert 'class="status running"' in first.live
    assert re.search(r'aria-label="wait [\d.]+ (ms|s), run [\d.]+ (ms|s), decide [\d.]+ (ms|s), settle', first.live)
    shows(place.site, "/jobs/running", lambda answer: newest(answer) > newest(first), "a later checkpoint is shown")


def cells(row: str) -> dict[str, str]:
    """The texts of a row of the overview, by their labels."""
    found = re.findall(r'<td data-label="([^"]+)"[^>]*>(.*?)</td>', row)
    return {label: re.sub(r"<[^>]*>", "", cell).strip() for label, cell in found}


def test_the_overview_shows_lag_rate_and_their_course_and_what_is_unknown_as_unknown(place: FourJobs) -> None:
    answer = shows(place.site, "/?sort=lag", lambda answer: "2.5 k" in answer.live, "the driver has reported")
    rows = dict(
        zip(re.findall(r'<a id="job-(\w+)"', answer.live), re.findall(r"<tr>.*?</tr>", answer.live)[1:], strict=True)
    )
    assert next(iter(rows)) == "running", "the most lag comes first"
    shown = cells(rows["running"])
    assert (shown["Lag"], shown["Records/s"]) == ("2.5 k", "80")
    assert len(re.findall(r'<svg class="sparkline".*?<polyline points="[\d., ]+"/>', rows["running"])) == 2
    unknown = cells(rows["orders"])
    assert (unknown["Lag"], unknown["Records/s"], unknown["Oldest transaction"]) == ("–", "–", "–")
    (job,) = place.site.json("/?q=running")["jobs"]
    assert (job["progress"]["lag"], job["progress"]["records_per_second"]) == (LAG, 80)
    (job,) = place.site.json("/?q=orders")["jobs"]
    assert job["progress"] is None


def test_a_job_shows_its_partitions_those_with_the_most_lag_first(place: FourJobs) -> None:
    answer = shows(place.site, "/jobs/running", lambda a: 'id="positions"' in a.live, "the driver has reported")
    table = re.search(r'<section aria-labelledby="positions">.*?</section>', answer.live)
    assert table is not None
    assert f"<small>driver connected on {socket.gethostname()}:{os.getpid()}</small>" in answer.live
    rows = re.findall(r'<th scope="row">(.*?)</th><td class="number">(.*?)</td><td class="number">(.*?)</td>', table[0])
    assert len(rows) == 50
    assert rows[0][1:] == ("4", "–")
    assert rows[1] == ("&lt;b&gt;-<wbr>70", "80", "70")
    assert "and 22 more" in table[0]
    job = place.site.json("/jobs/running")["description"]
    assert job["partitions"][1] == {"partition": "<b>-70", "position": 80, "lag": 70}
    assert 'id="positions"' not in place.site.get("/jobs/orders").live


def test_finished_and_restarting_jobs_say_so(place: FourJobs) -> None:
    finished = place.site.get("/jobs/finished")
    assert 'class="status finished"' in finished.live
    assert "<dt>Settled</dt><dd>yes</dd>" in finished.live
    restarting = shows(place.site, "/jobs/restarting", lambda a: "announced its return" in a.live, "it waits")
    assert 'class="status restarting"' in restarting.live


def test_a_job_shows_where_its_outputs_write_and_how_far_they_are(place: FourJobs) -> None:
    def outputs(path: str) -> str:
        (section,) = re.findall(r'<section aria-labelledby="outputs">.*?</section>', place.site.get(path).live)
        return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", section)).split())

    assert re.search(r"sink test sink settled up to checkpoint \d+ halt", outputs("/jobs/finished"))
    assert "in doubt checkpoint 2: 1 lost, 1 in doubt" in outputs("/jobs/orders")
    assert set(place.site.json("/jobs/orders")["description"]["unsettled"]) == {SINK.name}
    assert place.site.json("/jobs/finished")["description"]["unsettled"] == {}


def test_a_job_shows_its_source_and_settings(place: FourJobs) -> None:
    live = place.site.get("/jobs/running").live
    assert "source is a test source" in re.sub("<[^>]+>", "", live)
    shown = dict(re.findall(r"<dt><code>(\w+)</code></dt><dd>([^<]+)</dd>", live))
    assert (shown["interval"], shown["tolerable_failed_checkpoints"], len(shown)) == ("100 ms", "1000", 8)
    assert "<dd>only on demand</dd>" in place.site.get("/jobs/finished").live


def test_an_aborted_checkpoint_shows_its_reason(place: FourJobs) -> None:
    live = place.site.get("/jobs/orders").live
    assert "<strong>the job was halted</strong> checkpoint 2: slot 1 was lost; slot 2 was in_doubt" in live


def test_a_checkpoint_shows_its_slots_with_outcome_and_evidence(place: FourJobs) -> None:
    answer = place.site.get("/jobs/orders/checkpoints/2")
    assert (answer.status, 'class="status completed"' in answer.live) == (200, True)
    rows = re.findall(r'class="number">(\d)</th><td><span class="status (\w+)">', answer.live)
    assert rows[:2] == [("1", "lost"), ("2", "in_doubt")], "what a person must know comes first"
    assert "slot 1 was lost" in answer.live
    assert "Positions of source" in answer.live
    found = place.site.json("/jobs/orders/checkpoints/2")
    assert found["description"]["summary"]["checkpoint"] == 2
    assert [one["settlement"]["outcome"] for one in found["description"]["settlements"]] == [
        "committed",
        "lost",
        "in_doubt",
    ]


def test_checkpoints_lead_to_each_other(place: FourJobs) -> None:
    assert 'href="/jobs/orders/checkpoints/2"' in place.site.get("/jobs/orders").live
    assert 'href="/jobs/orders/checkpoints/1"' in place.site.get("/jobs/orders/checkpoints/2").live


def test_text_from_outside_is_never_markup_and_has_no_control_characters(place: FourJobs) -> None:
    for path in ("/", "/jobs/restarting"):
        answer = shows(place.site, path, lambda answer: "it failed:" in answer.live, "the reason is shown")
        assert "<script>alert" not in answer.text
        assert "<b " not in answer.text
        assert not {"\u202e", "\x1b"} & set(answer.text)
        assert html.escape("<script>alert(") in answer.text
    (job,) = place.site.json("/?q=restarting")["jobs"]
    assert MARKUP in job["status_detail"]


def test_what_an_address_holds_is_escaped(place: FourJobs) -> None:
    answer = place.site.get("/?q=%22%3E%3Cscript%3Ealert(1)%3C/script%3E")
    assert answer.status == 200
    assert "<script>alert" not in answer.text
    assert "No job matches" in answer.text


def test_the_same_views_are_json(place: FourJobs) -> None:
    found = place.site.json("/?sort=name&limit=2&page=2")
    assert [job["job"] for job in found["jobs"]] == ["restarting", "running"]
    assert (found["total"], found["matching"], found["pages"], found["query"]["page"]) == (4, 4, 2, 2)
    assert found["statuses"] == {"halted": 1, "restarting": 1, "running": 1, "finished": 1}
    job = place.site.json("/jobs/orders")
    assert job["description"]["unresolved"] == {"sink": {"1": "lost", "2": "in_doubt"}}
    assert [one["checkpoint"] for one in job["checkpoints"]] == [3, 2, 1]
    assert [one["ruling"] for one in job["choices"]] == ["replay", "given_up"]


@pytest.mark.parametrize(
    "query",
    [
        *("page=0", "page=-1", "page=x", "page=1&page=2", "page=" + "9" * 40, "page=%D9%A1", "limit=101", "limit=0"),
        *(
            "sort=size",
            "status=ill",
            "reverse=yes",
            "other=1",
            "q=" + "a" * 101,
            "&".join(f"x{n}=1" for n in range(50)),
        ),
    ],
)
def test_an_address_that_cannot_be_used_is_refused(place: FourJobs, query: str) -> None:
    answer = place.site.get(f"/?{query}", accept="application/json")
    assert answer.status == 400
    assert answer.json["error"].startswith("This address cannot be used.")


@pytest.mark.parametrize(
    "path",
    [
        *("/jobs/absent", "/jobs/Not-A-Name", "/jobs/..%2f..%2fetc", "/jobs/", "/other", "/docs", "/sign-in"),
        *(f"/jobs/orders/checkpoints/{one}" for one in ("999", "0", "-1", "x", "%D9%A1", "9" * 30, "1/2")),
    ],
)
def test_other_addresses_show_nothing(place: FourJobs, path: str) -> None:
    answer = place.site.get(path)
    assert answer.status == 404
    assert "There is nothing here" in answer.live


def test_every_answer_keeps_the_browser_from_loading_framing_and_storing(place: FourJobs) -> None:
    policy = HEADERS["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    answers = [
        place.site.get(path)
        for path in ("/", "/jobs/orders", "/cluster", "/jobs/x", "/?page=0", "/style.css", "/page.js")
    ]
    answers += [place.site.get("/", method="POST"), place.site.get("/", host="evil.example")]
    for answer in answers:
        for name, value in HEADERS.items():
            assert answer.headers[name.lower()] == value
    for page in answers[:3]:  # nothing inline, which the policy would stop, and nothing from elsewhere
        assert not re.search(r"<style|<script(?! src=)|<[^>]*\s(on\w+|style)=", page.text)
        assert set(re.findall(r'(?:src|href)="([^"?]*)', page.text)) <= {
            *("/", "/cluster", "/style.css", "/page.js", "#live", "data:,"),
            *(f"/jobs/orders/checkpoints/{number}" for number in (1, 2, 3)),
            *(f"/jobs/{name}" for name in ("orders", "running", "restarting", "finished", "meanwhile", "declines")),
        }


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_only_reading_is_answered(place: FourJobs, method: str) -> None:
    for path in ("/", "/jobs/orders", "/page.js", "/other"):
        answer = place.site.get(path, method=method)
        assert (answer.status, set(answer.headers["allow"].split(", "))) == (405, {"GET", "HEAD"})


def test_head_gives_the_headers_alone(place: FourJobs) -> None:
    answer = place.site.get("/", method="HEAD")
    assert (answer.status, answer.text) == (200, "")
    assert int(answer.headers["content-length"]) > 1000


def test_a_site_whose_name_leads_here_reads_nothing(place: FourJobs) -> None:
    """DNS rebinding: the browser takes our answer for the site's own."""
    port = place.site.port
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "",
        "[::1",
    ):
        assert place.site.get("/", host=host).status == 421, host
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", "LOCALHOST", f"[::1]:{port}"):
        assert place.site.get("/", host=host).status == 200, host


def test_a_halted_job_shows_a_command_that_works(place: FourJobs) -> None:
    live = place.site.get("/jobs/orders").live
    assert "A person must decide" in live
    assert re.search(
        r'<td>sink</td><td class="number">1</td><td>lost</td><td class="number">–</td>.*?slot 1 was lost', live
    )
    replay, give_up = (html.unescape(line) for line in re.findall(r"<pre><code>(.*?)</code></pre>", live))
    assert "--give-up 1,2" in give_up
    program, *words = shlex.split(replay)
    assert program == "onceward"
    refused = onceward(*words, "--yes")
    assert "what is known now of slot 2 must be known first" in refused.stderr
    done = onceward(*words, "--yes", "--force")
    assert done.returncode == ExitCode.FINISHED, done.stderr
    shows(place.site, "/jobs/orders", lambda answer: "A person must decide" not in answer.live, "it is decided")


def test_silent_connections_are_bounded_and_take_nothing_from_the_coordinator(place: FourJobs) -> None:
    with ExitStack() as stack:
        opened = [stack.enter_context(socket.create_connection(("127.0.0.1", place.site.port))) for _ in range(100)]
        answers = [asked(opened[0]), asked(opened[-1])]
        assert answers == [b"HTTP/1.1 200 OK", b""]
        with connect(place.process.address) as client:
            driver = ScriptedDriver(client, JobName("meanwhile"), settings=ON_DEMAND)
            driver.wait_committed(1)
            driver.close(CloseReason.FINISHED)
    shows(place.site, "/", lambda answer: answer.status == 200, "the page is served again")


def test_a_page_outlives_an_outage_of_its_coordinator_and_says_so(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    with closing(Page(parse_listen("127.0.0.1:0"))) as page:
        site = Site(int(page.url.rstrip("/").rpartition(":")[2]))
        assert "The coordinator starts." in site.get("/").live
        page.attach(address, address)
        away = site.get("/")
        assert away.status == 503
        assert "It did not answer for 0.5 s" in away.live
        assert "asks again by itself" in away.live
        assert site.get("/jobs/orders", accept="application/json").json["error"].startswith("The coordinator does not")
        with serving(tmp_path / "here", port=int(address.rpartition(":")[2])):
            shows(site, "/", lambda answer: answer.status == 200, "the page is back")
            assert site.get("/jobs/orders").status == 404
        shows(site, "/", lambda answer: answer.status == 503, "the outage is shown")


def at_standby(leader: Leader, visit: Callable[[str], T]) -> T:
    """Call ``visit`` with the address of a coordinator that stands by for this leader."""

    async def visited() -> T:
        server = CoordinatorServer(options=ServerOptions(store_kind=StoreKind.POSTGRESQL))
        (port,) = await server.start("127.0.0.1:0")
        try:
            await server.stand_by(f"this coordinator stands by; {leader.address} leads", leader)
            return await asyncio.to_thread(visit, f"127.0.0.1:{port}")
        finally:
            await server.stop(0)

    return asyncio.run(visited())


def standing_by(leader: Leader, *paths: str) -> list[Answer]:
    """What the page of a coordinator that stands by for this leader shows at these addresses."""
    with closing(Page(parse_listen("127.0.0.1:0"))) as page:
        site = Site(int(page.url.rstrip("/").rpartition(":")[2]))

        def visit(address: str) -> list[Answer]:
            page.attach(address, address)
            return [site.get(path) for path in paths]

        return at_standby(leader, visit)


def test_a_visitor_can_sign_in_where_a_coordinator_stands_by() -> None:
    def visit(address: str) -> None:
        with closing(Reader()) as reader:
            reader.attach(address, address)
            reader.admit("")
            with pytest.raises(CoordinatorLostError):
                reader.jobs("")

    at_standby(Leader(address="a:1", term=1, since=None, web=""), visit)


def test_a_coordinator_that_stands_by_says_who_leads_and_links_its_page() -> None:
    leader = Leader(address="<b>10.0.0.9:7878</b>", term=7, since=None, web="https://10.0.0.9:7879/?<b>\"'")
    jobs, shown = standing_by(leader, "/", "/cluster")
    assert jobs.status == 503
    assert "this coordinator stands by; &lt;b&gt;10.0.0.9:7878&lt;/b&gt; leads." in jobs.live
    assert 'href="/cluster"' in jobs.live
    assert shown.status == 200
    assert "This coordinator stands by; &lt;b&gt;10.0.0.9:7878&lt;/b&gt; leads." in shown.live
    assert 'href="https://10.0.0.9:7879/?&lt;b&gt;&#34;&#39;"' in shown.live
    assert "in term 7" in shown.live
    assert "<b>" not in shown.text
    figures = dict(re.findall(r"<dt>([^<]+)</dt><dd>([^<]*)", shown.live))
    unknown = ("Half of the writes within", "Slowest write", "Writes", "Jobs", "Drivers connected")
    assert {figures[name] for name in unknown} == {"–"}, "unknown is no 0"


@pytest.mark.parametrize("web", ["javascript:alert(1)", "", "//evil.example/", "data:text/html,x"])
def test_the_store_names_no_page_that_a_browser_should_not_open(web: str) -> None:
    (shown,) = standing_by(Leader(address="a:1", term=1, since=None, web=web), "/cluster")
    assert "Open the page" not in shown.live
    assert "href" not in shown.live


def test_every_view_leads_to_the_coordinators(place: FourJobs) -> None:
    for path in ("/", "/jobs/orders", "/jobs/orders/checkpoints/2", "/cluster", "/jobs/absent", "/?page=0"):
        assert '<a class="who" href="/cluster"' in place.site.get(path).text, path


def test_a_coordinator_shows_its_store_its_writes_and_its_options(place: FourJobs) -> None:
    answer = place.site.get("/cluster")
    figures = dict(re.findall(r"<dt>([^<]+)</dt><dd>([^<]*)", answer.live))
    for name in ("Half of the writes within", "99 % of the writes within", "Slowest write"):
        assert re.fullmatch(r"[\d.]+ (ms|s)", figures[name]), figures
    assert int(figures["Jobs"]) >= 4
    assert (int(figures["Drivers connected"]) >= 1, int(figures["Connections"]) >= 1) == (True, True)
    assert "it stands alone" in answer.live
    assert "<dt><code>--store</code></dt><dd>sqlite:///" in answer.live
    found = place.site.json("/cluster")
    described = found["description"]
    assert (described["role"], described["leader"]["address"]) == ("leads", place.process.address)
    assert described["leader"]["web"] == f"http://127.0.0.1:{place.site.port}/"
    assert described["standbys"] == []
    assert described["commits"]["commits"] > 0
    assert {"name": "web", "value": "127.0.0.1:0"} in described["settings"]
    assert place.site.get("/cluster?x=1").status == 400
    listed = json.loads(onceward("coordinators", "--coordinator", place.process.address, "--json").stdout)
    assert listed.keys() == described.keys()
    assert listed["leader"] == described["leader"]


def test_a_page_comes_back_with_its_coordinator(tmp_path: Path) -> None:
    port, web = free_port(), free_port()
    with serving(tmp_path / "here", port=port, web=f"127.0.0.1:{web}") as (process, site):
        with connect(process.address) as client:
            driver = ScriptedDriver(client, JobName("orders"), settings=ON_DEMAND)
            driver.wait_committed(1)
            driver.close(CloseReason.FINISHED)
        assert [job["job"] for job in site.json("/")["jobs"]] == ["orders"]
    with pytest.raises(OSError):  # noqa: PT011 - the script says so, and asks again
        site.get("/")
    with serving(tmp_path / "here", port=port, web=f"127.0.0.1:{web}") as (_, again):
        shows(again, "/", lambda answer: 'id="job-orders"' in answer.text, "the page is back")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--web", "0.0.0.0:0"), "can be reached from other machines"),
        (("--web", "unix:/tmp/page"), "browsers need HOST:PORT"),
        (("--web", "7879"), "is no address to listen on"),
        (("--web", "127.0.0.1:0", "--listen", "unix:SOCKET"), "cannot be combined with a socket without --rights"),
    ],
)
def test_what_would_show_jobs_to_others_is_refused_before_anything_starts(
    tmp_path: Path, options: tuple[str, ...], says: str
) -> None:
    store = f"sqlite:///{tmp_path / 'store.db'}"
    given = [word.replace("SOCKET", str(tmp_path / "s")) for word in options]
    result = onceward_process("serve", "--listen", "127.0.0.1:0", "--store", store, *given)
    assert (result.returncode, says in result.stderr) == (ExitCode.USAGE, True), result.stderr
    assert not (tmp_path / "store.db").exists()


def test_no_token_is_asked_for_in_plain_text() -> None:
    socket_of_the_user = parse_listen("unix:/tmp/coordinator")
    with ExitStack() as stack, pytest.raises(ConfigurationError, match="needs --tls-cert and --tls-key"):
        page_of(stack, "127.0.0.1:0", socket_of_the_user, None, Path("rights.toml"), anywhere=True)


def test_the_page_needs_no_short_path_for_temporary_files(tmp_path: Path) -> None:
    scratch = tmp_path / ("long" * 30)
    scratch.mkdir()
    with serving(tmp_path / "here", environment={"TMPDIR": str(scratch)}) as (_, site):
        shows(site, "/", lambda answer: answer.status == 200, "the page is served")


def test_an_address_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        used = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ConfigurationError, match=rf"Cannot serve the page on {used}: Address already in use"):
            Page(parse_listen(used))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onceward.watch.web.page.find_spec", lambda name: None if name == "uvicorn" else name)
    with pytest.raises(ConfigurationError, match=r"not installed \(uvicorn\).*pip install 'onceward\[web\]'"):
        require_installed()


def test_a_driver_s_words_about_a_sink_are_text(place: FourJobs) -> None:
    with connect(place.process.address) as client:
        driver = ScriptedDriver(client, JobName("declines"), settings=OFTEN)
        driver.wait_committed(1)
        driver.session.decline(CheckpointId(max(driver.runs) + 1), SINK.name, MARKUP)
        driver.session.abandon(MARKUP)
    answer = shows(place.site, "/jobs/declines", lambda answer: "alert" in answer.text, "its words are shown")
    assert "<script>alert" not in answer.text
