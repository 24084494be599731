"""A slice of the network suite, and tests that its verdicts can be trusted (tests/network/README.md)."""

import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from onceward.common.errors import ExitCode
from onceward.connections.requests import REQUEST_TIMEOUT_MS
from tests.network.report import passed
from tests.network.results import Run
from tests.network.runs import run_scenario, setup_of
from tests.network.scenario import SCENARIOS, Phase, all_scenarios, load
from tests.network.sockets import Bypasses, connections
from tests.network.supervising import supervise
from tests.network.world import LinkedHarness, linked_harness
from tests.support.jobs import Job
from tests.support.schedules import Outcome
from tests.support.toxiproxy import toxiproxy_or_skip
from tests.support.waiting import wait_until

pytestmark = pytest.mark.long

LINK = (
    r"all|(driver|coordinator|second-executor)-brokers|driver-coordinator|driver-tasks"
    r"|driver-(source-broker|sink-broker|transaction-coordinator|leader)"
    r"|(leader|standby|table)-database|databases|table-catalogue"
)
"""The links that `tests.network.faults.chosen` knows, by name or group."""
SLICE = [
    pytest.param("e02-answer-of-end-txn-lost", [Phase.DECIDED], id="e02-answer-of-end-txn-lost"),
    pytest.param("e12-coordinator-cut", [Phase.PREPARED], id="e12-coordinator-cut"),
    pytest.param("table-cut", [Phase.DECIDED], id="table-cut"),
    pytest.param("catalogue-cut", [Phase.DECIDED], id="catalogue-cut"),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LinkedHarness]:
    toxiproxy_or_skip()
    with linked_harness(tmp_path_factory.mktemp("network")) as made:
        yield made


@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "phases"), SLICE)
def test_a_fault_costs_nothing_and_the_job_comes_back(world: LinkedHarness, name: str, phases: list[Phase]) -> None:
    runs = run_scenario(world, load(SCENARIOS / name), phases, f"slice-{name}", 1)
    assert passed(runs), [(run.outcome.value, run.phase, run.reasons) for run in runs]


@pytest.mark.kill
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_whose_driver_bypassed_its_links_is_unknown_even_with_every_record_right(world: LinkedHarness) -> None:
    (run,) = run_scenario(world, load(SCENARIOS / "e18-bypass"), [Phase.TRIGGER], "slice-bypass", 1)
    assert (run.outcome, run.reasons) == (Outcome.UNKNOWN, [])


@pytest.mark.network
@pytest.mark.timeout(4 * 3600)
def test_every_link_fails_in_every_way_at_every_phase(tmp_path: Path) -> None:
    with linked_harness(tmp_path) as own:
        for scenario in all_scenarios():
            runs = run_scenario(own, scenario, scenario.phases, scenario.name, 1)
            assert passed(runs), [(run.outcome.value, run.scenario, run.phase, run.reasons) for run in runs]


def test_a_client_that_reaches_a_server_directly_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        watched = Bypasses(lambda: [os.getpid()], lambda: {port})
        with watched as bypasses, socket.create_connection(("127.0.0.1", port)) as client:
            mine = [one for one in connections([os.getpid()]) if one.remote_port == port]
            assert [one.local_port for one in mine] == [client.getsockname()[1]]
            wait_until(lambda: bypasses.found, "the connection is found", 20)
        assert bypasses.found == {port}
        assert bypasses.looks


def test_a_listening_socket_and_other_peoples_connections_are_no_bypass() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            assert not [one for one in connections([os.getppid()]) if one.remote_port == port]


def test_one_make_network_is_at_least_220_runs_and_every_setup_can_be_used() -> None:
    scenarios = all_scenarios()
    assert sum(len(one.phases) for one in scenarios) >= 220
    assert len({one.name for one in scenarios}) == len(scenarios)
    for one in scenarios:
        assert all(re.fullmatch(LINK, link) for link in one.fault.links), one.name
        assert setup_of(one).settings["interval"] == "200ms"


def test_a_late_request_times_out_before_it_arrives_and_arrives_before_the_heal() -> None:
    late = load(SCENARIOS / "end-txn-late")
    (toxic,) = late.fault.toxics
    assert REQUEST_TIMEOUT_MS + 1_000 < toxic.attributes["latency"] < 1_000 * late.seconds - 1_000


def test_an_unknown_word_is_refused(tmp_path: Path) -> None:
    known = (SCENARIOS / "e12-coordinator-cut" / "scenario.toml").read_text()
    for old, new in (("undecided", "undecidable"), ("down", "dawn"), ("seconds", "secons")):
        (tmp_path / "scenario.toml").write_text(known.replace(old, new))
        with pytest.raises(ValueError, match=f"{new}|{old}"):
            load(tmp_path)


@pytest.mark.parametrize(
    ("outcome", "expected", "reasons", "good"),
    [
        (Outcome.PASS, Outcome.PASS, [], True),
        (Outcome.PASS, Outcome.PASS, ["connections stay open"], False),
        (Outcome.UNKNOWN, Outcome.PASS, [], False),
        (Outcome.HALTED, Outcome.PASS, [], False),
        (Outcome.UNKNOWN, Outcome.UNKNOWN, [], True),
        (Outcome.PASS, Outcome.UNKNOWN, [], False),
    ],
)
def test_the_suite_passes_only_with_the_expected_verdicts(
    outcome: Outcome, expected: Outcome, reasons: list[str], good: bool
) -> None:
    run = Run(scenario="s", row="E1", phase="p", job="j", outcome=outcome, expected=expected, reasons=reasons)
    assert passed([run]) is good
    assert not passed([])


@pytest.mark.parametrize(
    ("killed", "left", "failed"),
    [
        (None, ExitCode.PREFLIGHT, True),
        ("driver", ExitCode.PREFLIGHT, False),
        ("driver", ExitCode.FENCED, True),
        ("coordinator", ExitCode.PREFLIGHT, True),
    ],
)
def test_only_a_driver_that_was_started_under_the_fault_may_leave_unanswered(
    killed: str | None, left: ExitCode, failed: bool
) -> None:
    started = []
    driver = SimpleNamespace(exit_code=int(left), tail=lambda: "its last words")
    job = SimpleNamespace(
        driver=driver, drive=lambda: started.append(True), wait=lambda condition, _: condition() or pytest.fail("waits")
    )
    run = Run(scenario="s", row="E1", phase="p", job="j", killed=killed)
    supervise(cast(Job, job), run, 0.0)
    assert (run.left, bool(run.reasons), len(started)) == (left, failed, 1)
