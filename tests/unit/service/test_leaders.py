"""Several coordinators on one PostgreSQL: one leads, and another one replaces it, however it ends."""

import asyncio
import math
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]
from typer.testing import CliRunner

from onceward.client.calls import open_channel
from onceward.client.operators import OperatorClient
from onceward.client.session import connect
from onceward.coordinator.service.embedded import EmbeddedCoordinator
from onceward.coordinator.service.server import CoordinatorServer
from onceward.coordinator.store.errors import LeadLostError
from onceward.coordinator.store.postgres import LOCK_SPACE
from onceward.coordinator.store.store import Store
from onceward.operate.cli import app
from onceward.operate.health import run_health
from onceward.protocol.durable import Durable
from onceward.protocol.values import JobName
from onceward.wire.lead import LEADER, LIVE, READY, TERM
from onceward.wire.v1 import operators_pb2 as pb
from onceward.wire.v1.operators_pb2_grpc import OperatorServiceStub
from tests.support.places import Place, postgres_place
from tests.support.processes import halt
from tests.support.scraped import Scraped, scrape
from tests.support.scripted import CoordinatorProcess, ScriptedDriver
from tests.support.waiting import wait_until
from tests.unit.web.browser import Site, site_of

if TYPE_CHECKING:
    from onceward.dev.postgres.server import LocalPostgres

_JOBS = 5


class Pair:
    """Two coordinators, and drivers that know both."""

    def __init__(self, stack: ExitStack, directory: Path, place: Place, *, preamble: str = "") -> None:
        self._stack = stack
        self._preamble = preamble
        self.place = place
        self.processes = [self._started(directory / name) for name in ("a", "b")]
        self.address = ",".join(process.address for process in self.processes)
        self.drivers: list[ScriptedDriver] = []

    def _started(self, directory: Path, port: int | None = None) -> CoordinatorProcess:
        process = CoordinatorProcess(
            directory,
            port=port,
            store_url=self.place.url,
            preamble=self._preamble,
            options=["--metrics", "127.0.0.1:0", "--web", "127.0.0.1:0"],
        )
        self._stack.callback(process.end)
        process.wait_ready()
        wait_until(lambda: run_health(process.address, READY) == 0, "it leads, or could")
        return process

    def again(self, process: CoordinatorProcess) -> None:
        """Start a dead one again."""
        self.processes[self.processes.index(process)] = self._started(process.directory, process.port)

    def drive(self, count: int = _JOBS) -> None:
        for number in range(count):
            client = self._stack.enter_context(connect(self.address, patience="60s"))
            driver = ScriptedDriver(client, JobName(f"job-{number}"))
            self._stack.callback(driver.session.let_go)
            self.drivers.append(driver)
        self.wait_for_decisions()

    def leader(self) -> CoordinatorProcess:
        return next(process for process in self.processes if process.running and run_health(process.address) == 0)

    def standby(self) -> CoordinatorProcess:
        leader = self.leader()
        return next(process for process in self.processes if process is not leader)

    def wait_for_decisions(self, more: int = 3) -> float:
        """Wait until each job has ``more`` decisions; return how long that took, in seconds."""
        begun = time.monotonic()
        counts = [len(driver.committed) for driver in self.drivers]
        for driver, count in zip(self.drivers, counts, strict=True):
            driver.wait_committed(count + more)
        return time.monotonic() - begun

    def term(self) -> int:
        with self.place.raw() as raw:
            found = "SELECT (value::json ->> 'number')::int FROM onceward_meta WHERE key = 'term'"
            return int(raw.exec_driver_sql(found).scalar_one())

    def require_one_history(self) -> None:
        """Each job's decisions are complete and in order, and no driver was fenced by a change of the leader."""
        for driver in self.drivers:
            assert driver.errors.empty()
            assert driver.session.generation == 1
            assert driver.committed == sorted(set(driver.committed))
        with OperatorClient(self.address) as operators:
            assert {job.generation for job in operators.jobs()} == {1}


def test_a_leader_that_cannot_confirm_its_lead_answers_nothing(
    on: Callable[..., EmbeddedCoordinator], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It slept, and the database may have ended its session: its memory says nothing about who leads."""
    confirmed = threading.Event()

    def confirm(_: Store) -> None:
        if not confirmed.is_set():
            raise LeadLostError("another one leads")

    monkeypatch.setattr(Store, "leads_for", property(lambda _: math.inf if confirmed.is_set() else -math.inf))
    monkeypatch.setattr(Store, "confirm", confirm)
    unknown = pb.CancelJobRequest(job="begun-by-another")
    with open_channel(on(tmp_path / "late").address) as channel:
        late: Any = OperatorServiceStub(channel).ListJobs.future(pb.ListJobsRequest(), timeout=30)
        assert late.code() is grpc.StatusCode.UNAVAILABLE
    with open_channel(on(tmp_path / "refusing").address) as channel:
        refused: Any = OperatorServiceStub(channel).CancelJob.future(unknown, timeout=30)
        assert refused.code() is grpc.StatusCode.UNAVAILABLE, refused.details()
    confirmed.set()
    with open_channel(on(tmp_path / "leader").address) as channel:
        refused = OperatorServiceStub(channel).CancelJob.future(unknown, timeout=30)
        assert refused.code() is grpc.StatusCode.NOT_FOUND
        answer = OperatorServiceStub(channel).ListJobs.future(pb.ListJobsRequest(), timeout=30)
        assert answer.code() is grpc.StatusCode.OK
        assert (TERM, "1") in [tuple(one) for one in answer.trailing_metadata()]


def test_health_is_answered_while_the_jobs_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That takes seconds when there are thousands, and a coordinator that does not answer is restarted."""
    go_on, load = threading.Event(), Store.load_jobs

    def loading(self: Store) -> list[Durable]:
        assert go_on.wait(30), "health was not answered"
        return load(self)

    monkeypatch.setattr(Store, "load_jobs", loading)

    async def run() -> None:
        server = CoordinatorServer()
        address = f"127.0.0.1:{(await server.start('127.0.0.1:0'))[0]}"
        with closing(Store.open(f"sqlite:///{tmp_path / 'store.db'}")) as store:
            leads = asyncio.create_task(server.lead(store))
            assert await asyncio.to_thread(run_health, address, LIVE) == 0
            assert await asyncio.to_thread(run_health, address) == 1
            go_on.set()
            await leads
            assert await asyncio.to_thread(run_health, address) == 0
            await server.stop()

    asyncio.run(run())


@pytest.fixture
def pair(tmp_path: Path, postgres: "LocalPostgres") -> Iterator[Pair]:
    with ExitStack() as stack:
        yield Pair(stack, tmp_path, postgres_place(postgres))


def asked_of(address: str, *options: str) -> int:
    return CliRunner().invoke(app, ["health", "--coordinator", address, *options]).exit_code


def test_a_coordinator_that_stands_by_names_the_one_that_leads(pair: Pair) -> None:
    leader, standby = pair.leader(), pair.standby()
    wait_until(lambda: "stands by" in standby.log.read_text(), "it says that it stands by")
    with open_channel(standby.address) as channel:
        refused: Any = OperatorServiceStub(channel).ListJobs.future(pb.ListJobsRequest(), timeout=30)
        assert refused.code() is grpc.StatusCode.UNAVAILABLE
        assert refused.details() == f"this coordinator stands by; {leader.address} leads"
        assert (LEADER, leader.address) in [tuple(one) for one in refused.trailing_metadata()]
    assert (run_health(standby.address), run_health(standby.address, READY)) == (1, 0)
    assert run_health(standby.address, LIVE) == 0
    assert [asked_of(standby.address, *options) for options in ((), ("--ready",), ("--live",))] == [1, 0, 0]
    assert pair.term() == 1


def test_the_page_of_one_that_stands_by_names_the_leader_and_links_its_page(pair: Pair) -> None:
    leader, standby = pair.leader(), pair.standby()
    leaders_page, standbys_page = site_of(leader), site_of(standby)
    wait_until(lambda: standbys_page.get("/cluster").status == 200, "it says what it does")
    shown = standbys_page.get("/cluster").live
    assert f"This coordinator stands by; {leader.address} leads." in shown
    link = re.findall(r'<a id="leader" href="http://127\.0\.0\.1:(\d+)/">', shown)
    assert link == [str(leaders_page.port)]
    assert Site(int(link[0])).json("/cluster")["description"]["role"] == "leads"
    known = standbys_page.json("/cluster")["description"]
    assert (known["leader"]["address"], known["leader"]["term"]) == (leader.address, pair.term())
    assert [known[name] for name in ("standbys", "commits", "drivers", "jobs")] == [None] * 4, "unknown here"
    wait_until(lambda: named(leaders_page.json("/cluster")["description"]["standbys"]) == [standby.pid], "it is named")
    listed = CliRunner().invoke(app, ["coordinators", "--coordinator", pair.address]).output
    assert re.search(rf"^{leader.address} +leads .*http://127\.0\.0\.1:{leaders_page.port}/", listed, re.MULTILINE)
    assert re.search(rf":{standby.pid} +stands by ", listed)
    asked = CliRunner().invoke(app, ["coordinators", "--coordinator", standby.address]).output
    assert re.search(rf"^{leader.address} +leads ", asked, re.MULTILINE)
    assert "the one that was asked" in asked
    leader.end()
    wait_until(lambda: standbys_page.json("/cluster")["description"]["role"] == "leads", "the other one leads")
    after = standbys_page.json("/cluster")["description"]
    assert (after["leader"]["address"], after["leader"]["term"]) == (standby.address, pair.term())
    assert after["leader"]["since"] > known["leader"]["since"]


def named(standbys: Sequence[Mapping[str, str]] | None) -> list[int]:
    """The processes of these."""
    return [int(one["name"].rpartition(":")[2]) for one in standbys or ()]


Measured = Callable[[str, object], None]


def test_a_killed_leader_is_replaced_and_no_driver_is_fenced(pair: Pair, record_property: Measured) -> None:
    pair.drive()
    for _ in range(2):
        leader, term = pair.leader(), pair.term()
        leader.end()
        record_property("leader killed, until every job decided again", _seconds(pair.wait_for_decisions()))
        assert pair.term() == term + 1
        pair.again(leader)
    pair.require_one_history()


def _seconds(took: float) -> str:
    return f"{took:.2f} s, load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def test_a_paused_leader_is_replaced_and_writes_nothing_when_it_wakes(pair: Pair, record_property: Measured) -> None:
    pair.drive()
    leader, term = pair.leader(), pair.term()
    halt(leader.pid)
    try:
        record_property("leader paused, until every job decided again", _seconds(pair.wait_for_decisions()))
    finally:
        os.kill(leader.pid, signal.SIGCONT)
    assert pair.term() == term + 1
    wait_until(lambda: "event=stands_by" in leader.log.read_text(), "the old leader stands by")
    wait_until(lambda: run_health(leader.address, READY) == 0, "it could lead again")
    pair.wait_for_decisions()
    assert run_health(leader.address) == 1
    assert pair.term() == term + 1
    pair.require_one_history()


def test_sigterm_hands_the_lead_over_before_the_process_ends(pair: Pair, record_property: Measured) -> None:
    pair.drive()
    leader, term = pair.leader(), pair.term()
    os.kill(leader.pid, signal.SIGTERM)
    record_property("leader terminated, until every job decided again", _seconds(pair.wait_for_decisions()))
    wait_until(lambda: not leader.running, "it ends")
    assert leader.exit_code == 0
    assert pair.term() == term + 1
    pair.require_one_history()


_WITHOUT_LIMITS = """
from onceward.coordinator.service.server import CoordinatorServer
from onceward.coordinator.store import postgres
postgres._WAITING["idle_session_timeout"] = postgres._LEADING["idle_session_timeout"] = "0"
stop = CoordinatorServer.stop
CoordinatorServer.stop = lambda server: stop(server, 3600.0)
"""


def test_sigterm_releases_the_lead_before_the_server_waits_for_open_calls(
    tmp_path: Path, postgres: "LocalPostgres"
) -> None:
    """An open call keeps the process for the server's time of grace, which has no end here. Neither does the database
    end a silent session: only the process itself can release the lead."""
    with ExitStack() as stack:
        pair = Pair(stack, tmp_path, postgres_place(postgres), preamble=_WITHOUT_LIMITS)
        leader, standby = pair.leader(), pair.standby()
        with open_channel(leader.address) as channel:
            watched: Any = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=LIVE))
            next(watched)
            os.kill(leader.pid, signal.SIGTERM)
            wait_until(lambda: run_health(standby.address) == 0, "the other one leads")
            assert leader.running
            watched.cancel()
        wait_until(lambda: not leader.running, "it ends")
        assert leader.exit_code == 0


def test_a_leader_whose_session_is_ended_stands_by_or_leads_again(pair: Pair) -> None:
    pair.drive()
    term = pair.term()
    with pair.place.raw() as raw:
        raw.exec_driver_sql(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND granted AND classid = "
            f"{LOCK_SPACE}"
        )
    pair.wait_for_decisions()
    assert pair.term() == term + 1
    assert all(process.running for process in pair.processes)
    pair.require_one_history()


def test_coordinators_wait_for_a_database_that_restarts(pair: Pair, postgres: "LocalPostgres") -> None:
    pair.drive()
    postgres.restart()
    pair.wait_for_decisions()
    assert all(process.running for process in pair.processes)
    pair.require_one_history()


def metrics_of(process: CoordinatorProcess) -> Scraped:
    wait_until(lambda: "metrics are at" in process.log.read_text(), "the address is announced")
    return scrape(re.findall(r"metrics are at (\S+)", process.log.read_text())[-1])


def test_metrics_show_who_leads_its_term_and_the_jobs_of_the_leader_alone(pair: Pair) -> None:
    pair.drive()
    leader, standby = pair.leader(), pair.standby()
    first = metrics_of(leader)
    assert (first.value("onceward_leader"), metrics_of(standby).value("onceward_leader")) == (1, 0)
    assert first.value("onceward_term") == pair.term()
    assert first.value("onceward_jobs", status="running") == len(pair.drivers)
    assert metrics_of(standby).labels("onceward_job_status") == set()
    leader.send(signal.SIGKILL)
    pair.wait_for_decisions()
    second = metrics_of(standby)
    assert (second.value("onceward_leader"), second.value("onceward_term")) == (1, pair.term())
    assert second.value("onceward_term") > first.value("onceward_term")
    assert second.labels("onceward_job_status") == {f"job-{number}" for number in range(len(pair.drivers))}
