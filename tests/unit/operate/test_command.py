"""The command: listings for people and programs, clear refusals, correct exit codes."""

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from onceward.client.session import Session, connect
from onceward.common.errors import ExitCode
from onceward.coordinator.service.embedded import EmbeddedCoordinator
from onceward.coordinator.service.listen import parse_listen
from onceward.coordinator.service.rights import Credentials, digest_of, parse_rights
from onceward.operate.doctor import clusters, machine
from onceward.operate.serve import rights_of
from onceward.protocol.answers import Stop
from onceward.protocol.events import CloseReason
from onceward.protocol.kinds import NamedSystem
from onceward.protocol.phases import Phase
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import CheckpointId, JobName
from tests.support.commands import onceward, onceward_process
from tests.support.scripted import SINK, SOURCE, CoordinatorProcess, positions, slots
from tests.support.waiting import wait_until

PHASES = {Phase.PLAN: timedelta(milliseconds=10), Phase.READ_TRANSFORM: timedelta(seconds=1.25)}


@pytest.fixture
def state_dir(tmp_path: Path) -> Iterator[Path]:
    """The directory of a coordinator with job ``orders``: 1 is settled, 2 aborted, 3 undecided."""
    directory = tmp_path / "state"
    settings = CheckpointSettings(interval=0, tolerable_failed_checkpoints=5)
    with EmbeddedCoordinator(directory) as coordinator, connect(coordinator.address) as client:
        session = client.open_job(JobName("orders"), (SOURCE, SINK), settings, None, driver="d")
        arrived: list[Any] = []
        session.start_watch(arrived.append)

        def triggered(checkpoint: int) -> None:
            wait_until(
                lambda: any(getattr(one, "checkpoint", 0) == checkpoint for one in arrived), f"trigger {checkpoint}"
            )

        triggered(1)
        session.acknowledge(CheckpointId(1), CheckpointId(0), {SOURCE.name: positions(1)})
        session.acknowledge(CheckpointId(1), CheckpointId(0), {SINK.name: slots(1, count=0)}, phases=PHASES)
        triggered(2)
        session.decline(CheckpointId(2), SINK.name, "the disk is full", phases={Phase.PLAN: PHASES[Phase.PLAN]})
        triggered(3)
        session.report_aborted(lambda: CheckpointId(2))
        session.renew()
        yield directory
        if (directory / "expect-stop").exists():
            wait_until(lambda: Stop() in arrived, "the driver receives Stop")


def test_coordinators_describes_the_one_inside_a_driver_and_says_what_it_does_not_know(state_dir: Path) -> None:
    listed = onceward("coordinators", "--state-dir", str(state_dir)).stdout
    assert re.search(r"^inside a driver +leads +(\d+ \w+ ago)", listed, re.MULTILINE)
    facts = dict(re.findall(r"^(\S+(?: \S+)*)  +(\S.*?) *$", listed, re.MULTILINE))
    assert (facts["jobs"], facts["drivers connected"], facts["connections"]) == ("1", "1", "-")
    assert "for one coordinator alone" in facts["store"]
    assert re.fullmatch(r"half within [\d.]+ m?s, 99 % within .*", facts["writes of decisions"])
    assert "It has no options of its own." in listed
    stamped = onceward("coordinators", "--utc", "--state-dir", str(state_dir)).stdout
    assert re.search(r"^inside a driver +leads +\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", stamped, re.MULTILINE)


def test_jobs_lists_the_jobs_of_a_running_driver_found_through_its_directory(state_dir: Path) -> None:
    listed = onceward("jobs", "--json", "--state-dir", str(state_dir))
    (job,) = json.loads(listed.stdout)
    assert datetime.fromisoformat(job.pop("last_completed_at")).tzinfo is not None
    (wait,) = job.pop("waits")
    assert wait["what"] == "the driver's acknowledgement of checkpoint 3 for source and sink"
    assert datetime.fromisoformat(wait["since"]).tzinfo is not None
    assert job.pop("machine") in ("", f"{socket.gethostname()}:{os.getpid()}"), "known once the driver has renewed"
    assert job == {
        "job": "orders",
        "status": "running",
        "status_detail": "",
        "generation": 1,
        "last_checkpoint": 3,
        "last_completed": 1,
        "settled": True,
        "ending": None,
        "failures": 1,
        "failure": "checkpoint 2 was aborted: a participant declined it: sink: the disk is full",
        "open_requests": [],
        "unreadable": "",
        "restore_from": 0,
        "restore_reason": "",
        "orphan": "",
        "unacknowledged_losses": 0,
        "oldest_transaction": None,
        "takeover_permitted": False,
        "adoption_permitted": None,
        "gone_outputs": [],
        "progress": None,
    }
    shown = onceward("jobs", ONCEWARD_STATE_DIR=str(state_dir))
    assert "orders" in shown.stdout
    assert "running" in shown.stdout
    assert "failed once, and has completed no checkpoint since: checkpoint 2 was aborted" in shown.stdout


def test_a_job_that_fails_again_and_again_is_not_shown_as_one_that_runs(tmp_path: Path) -> None:
    def shown() -> tuple[str, int, str]:
        (job,) = json.loads(onceward("jobs", "--json", "--state-dir", str(tmp_path)).stdout)
        return job["status"], job["failures"], job["failure"]

    with EmbeddedCoordinator(tmp_path) as coordinator, connect(coordinator.address) as client:

        def opened() -> Session:
            return client.open_job(JobName("orders"), (SOURCE, SINK), CheckpointSettings(interval=0), None, driver="d")

        opened().abandon("No record at all. Input: orders-0", back_within_s=60)
        session = opened()
        assert shown() == ("running", 1, "No record at all. Input: orders-0"), "one failure is no loop"
        session.abandon("Not JSON. Input: orders-0", back_within_s=60)
        session = opened()
        assert shown() == ("restarting", 2, "Not JSON. Input: orders-0")
        listed, overview = (
            onceward("jobs", "--state-dir", str(tmp_path)),
            onceward("top", "--once", "--state-dir", str(tmp_path)),
        )
        for output in (listed.stdout, overview.stdout):
            assert "restarting" in output
            assert "failed 2 times in a row" in " ".join(output.split())
        arrived: list[Any] = []
        session.start_watch(arrived.append)
        wait_until(lambda: bool(arrived), "a checkpoint is triggered")
        session.acknowledge(CheckpointId(1), CheckpointId(0), {SOURCE.name: positions(1), SINK.name: slots(1, count=0)})
        wait_until(lambda: shown() == ("running", 0, ""), "a completed checkpoint shows that the job runs again")


def test_history_is_listed_when_no_process_uses_the_directory_any_more(tmp_path: Path) -> None:
    with EmbeddedCoordinator(tmp_path) as coordinator, connect(coordinator.address) as client:
        session = client.open_job(JobName("orders"), (SOURCE, SINK), CheckpointSettings(), None, driver="d")
        session.close(CloseReason.STOPPED)
    listed = onceward("jobs", "--json", "--state-dir", str(tmp_path))
    assert [(job["job"], job["status"]) for job in json.loads(listed.stdout)] == [("orders", "suspended")]
    history = onceward("history", "orders", "--json", "--state-dir", str(tmp_path))
    assert [one["generation"] for one in json.loads(history.stdout)["generations"]] == [1]


def test_checkpoints_lists_newest_first_with_the_reason_of_an_abort(state_dir: Path) -> None:
    listed = onceward("checkpoints", "orders", "--json", "--state-dir", str(state_dir))
    rows = json.loads(listed.stdout)
    assert [(row["checkpoint"], row["base"], row["state"]) for row in rows] == [
        (3, 1, "triggered"),
        (2, 1, "aborted"),
        (1, 0, "settled"),
    ]
    assert rows[1]["abort_reason"] == "a participant declined it"
    assert rows[1]["detail"] == "sink: the disk is full"
    assert rows[0]["decided_at"] is None
    assert (rows[2]["kind"], rows[2]["records_read"], rows[2]["settled"]) == ("checkpoint", 1, 0.0)
    assert all(row["waited"] >= 0 for row in rows)
    assert [row["ran"] is None for row in rows] == [True, False, False]
    assert [row["phases"] for row in rows] == [{}, {"plan": 0.01}, {"plan": 0.01, "read+transform": 1.25}]
    shown = onceward("checkpoints", "orders", "--limit", "2", "--state-dir", str(state_dir))
    assert "a participant declined it: sink: the disk is full" in " ".join(shown.stdout.split())
    assert "settled" not in shown.stdout
    wide = onceward("checkpoints", "orders", "--state-dir", str(state_dir), COLUMNS="400")
    longest = re.findall(r"(?:read\+transform|plan) [\d.]+ m?s", wide.stdout)
    assert longest == ["plan 10 ms", "read+transform 1 s"], wide.stdout


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--watch",), "--watch needs a terminal"),
        (("--json", "--watch"), "--json goes with"),
        (("--json", "--utc"), "--json goes with"),
    ],
)
def test_a_listing_refuses_options_without_a_meaning(state_dir: Path, options: tuple[str, ...], why: str) -> None:
    refused = onceward("jobs", *options, "--state-dir", str(state_dir))
    assert (refused.returncode, refused.stdout) == (ExitCode.USAGE, "")
    assert why in refused.stderr


def test_a_listing_says_times_as_ages_and_as_stamps_on_request(state_dir: Path) -> None:
    ages = onceward("checkpoints", "orders", "--state-dir", str(state_dir)).stdout
    assert re.search(r"settled +\d+ m?s ago", ages), ages
    stamps = onceward("checkpoints", "orders", "--utc", "--state-dir", str(state_dir)).stdout
    assert re.search(r"settled +20\d\d-\d\d-\d\d \d\d:\d\d:\d\dZ", stamps), stamps


def test_one_checkpoint_is_shown_with_its_positions(state_dir: Path) -> None:
    shown = json.loads(onceward("checkpoints", "orders", "--show", "1", "--state-dir", str(state_dir)).stdout)
    assert shown["summary"]["state"] == "settled"
    assert shown["snapshots"]["source"]["positions"]["body"] == positions(1).positions.body  # type: ignore[union-attr]


def test_stop_reaches_the_driver_and_may_be_repeated(state_dir: Path) -> None:
    (state_dir / "expect-stop").touch()
    first = onceward("stop", "orders", "--detached", "--state-dir", str(state_dir))
    assert (first.returncode, "was asked to stop" in first.stdout) == (0, True)
    again = onceward("stop", "orders", "--detached", "--state-dir", str(state_dir))
    assert (again.returncode, "before" in again.stdout) == (0, True)


@pytest.mark.parametrize(
    "command",
    [
        ("stop", "absent"),
        ("cancel", "absent"),
        ("savepoint", "absent"),
        ("savepoint", "absent", "--delete", "3"),
        ("checkpoint", "absent"),
        ("restore", "absent", "--from", "3", "--reason", "a test", "--yes"),
        ("checkpoints", "absent"),
        ("history", "absent"),
        ("stop", "No.Name"),
        ("savepoint", "orders", "--delete", "1"),
        ("savepoint", "orders", "--delete", "1", "--name", "x"),
        ("stop", "orders", "--name", "x"),
        ("restore", "orders", "--from", "1", "--reason", "it runs", "--yes"),
    ],
)
def test_unknown_and_impossible_jobs_are_usage_errors(state_dir: Path, command: tuple[str, ...]) -> None:
    refused = onceward(*command, "--state-dir", str(state_dir))
    assert refused.returncode == ExitCode.USAGE
    assert refused.stderr.startswith("onceward: ")
    assert "hanged" in refused.stderr, "it says that nothing was changed"
    assert "Traceback" not in refused.stderr


def test_a_directory_without_a_coordinator_is_reported_in_one_sentence(tmp_path: Path) -> None:
    refused = onceward("jobs", "--state-dir", str(tmp_path))
    assert refused.returncode == ExitCode.USAGE
    assert "No coordinator is running on" in refused.stderr


def test_an_unreachable_coordinator_has_its_own_exit_code(tmp_path: Path) -> None:
    (tmp_path / "coordinator.address").write_text(f"unix:{tmp_path}/gone.sock\n")
    refused = onceward("jobs", "--state-dir", str(tmp_path))
    assert refused.returncode == ExitCode.COORDINATOR_LOST
    assert "is lost while listing jobs" in refused.stderr


def test_serve_announces_its_address_and_ends_with_zero_on_sigterm(tmp_path: Path) -> None:
    process = CoordinatorProcess(tmp_path / "c").wait_ready()
    try:
        wait_until(lambda: f"listens on {process.address}" in process.log.read_text(), "the address is announced")
        listed = onceward_process("jobs", "--json", "--coordinator", process.address)
        assert (listed.returncode, json.loads(listed.stdout)) == (0, [])
        os.kill(process.pid, signal.SIGTERM)
        assert process.wait() == ExitCode.FINISHED
    finally:
        process.end()


def test_serve_listens_on_loopback_only_by_default(tmp_path: Path) -> None:
    """`tests/unit/service/test_listen.py` has the other addresses."""
    refused = onceward_process("serve", "--listen", "0.0.0.0:7878", "--store", f"sqlite:///{tmp_path / 'store.db'}")
    assert refused.returncode == ExitCode.USAGE
    assert "Nothing was started" in refused.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("password", "why"),
    [
        ("hunter2", "--store-password: is not a reference"),
        ("env:ONCEWARD_ABSENT", "--store-password refers to the environment variable ONCEWARD_ABSENT, unset or empty"),
        ("file:/absent", "--store-password refers to the file /absent"),
    ],
)
def test_serve_takes_the_stores_password_only_by_reference(password: str, why: str) -> None:
    command = ("serve", "--listen", "127.0.0.1:0", "--store", "postgresql://u@127.0.0.1:1/d")
    refused = onceward_process(*command, "--store-password", password)
    assert refused.returncode == ExitCode.USAGE
    assert why in refused.stderr
    assert "hunter2" not in refused.stderr


def test_a_token_is_written_for_its_peer_alone_and_its_hash_is_printed(tmp_path: Path) -> None:
    file = tmp_path / "token"
    made = onceward("token", str(file))
    token = file.read_text().strip()
    assert made.returncode == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert len(token) >= 43, "256 random bits"
    assert token not in made.stdout + made.stderr
    rights = parse_rights(f"[peers.robot]\n{made.stdout}view = ['*']")
    peer = rights.peer(Credentials(token=digest_of(token)))
    assert peer is not None
    assert peer.name == "robot"
    again = onceward("token", str(file))
    assert again.returncode == int(ExitCode.USAGE)
    assert "No token was made" in again.stderr
    assert file.read_text().strip() == token
    other = onceward("token", str(tmp_path / "other"))
    assert other.stdout != made.stdout


def test_serve_refuses_rights_that_no_client_could_prove(tmp_path: Path) -> None:
    file = tmp_path / "rights.toml"
    file.write_text(f'[peers.a]\ntokens = ["sha256:{"0" * 64}"]\nview = ["*"]\n')
    refused = onceward_process("serve", "--listen", "127.0.0.1:0", "--rights", str(file))
    assert refused.returncode == int(ExitCode.USAGE)
    assert "--rights needs TLS" in refused.stderr
    file.write_text("[peers.a")
    refused = onceward_process("serve", "--listen", f"unix:{tmp_path}/s/s.sock", "--rights", str(file))
    assert refused.returncode == int(ExitCode.USAGE)
    assert "it is not TOML" in refused.stderr
    assert "Nothing was started" in refused.stderr


def test_serve_warns_that_every_client_may_do_everything_where_others_reach_it(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    for text, warned in (("127.0.0.1:1", False), (f"unix:{tmp_path}/s", False), ("0.0.0.0:1", True)):
        caplog.clear()
        assert rights_of(None, parse_listen(text, anywhere=True), None) is None
        assert [record.levelname for record in caplog.records] == ["WARNING"] * warned
    assert "every client that is accepted may do everything" in caplog.text


def test_serve_refuses_a_clusters_file_that_cannot_be_used(tmp_path: Path) -> None:
    clusters = tmp_path / "clusters.toml"
    clusters.write_text("[clusters.main]\nbootstrap = 'x'\n")
    store = f"sqlite:///{tmp_path / 'store.db'}"
    refused = onceward_process("serve", "--listen", "127.0.0.1:0", "--store", store, "--clusters", str(clusters))
    assert refused.returncode == ExitCode.USAGE
    assert "clusters.main" in refused.stderr
    assert not (tmp_path / "store.db").exists()


def test_doctor_reports_everything_and_an_unreachable_coordinator_as_wrong(tmp_path: Path) -> None:
    said = onceward("doctor", "--json", "--coordinator", f"unix:{tmp_path}/gone.sock")
    checks = json.loads(said.stdout)
    assert {"Python", "Java", "grpcio", "pyspark", "clock of this machine"} <= {check["subject"] for check in checks}
    assert checks[-1]["ok"] is False
    assert checks[-1]["level"] == "error"
    assert said.returncode == 1


def disk_line(directory: Path) -> dict[str, str]:
    checks = json.loads(onceward("doctor", "--json", "--state-dir", str(directory)).stdout)
    (line,) = (check for check in checks if check["subject"] == f"state directory {directory}")
    return dict(line)


def test_doctor_looks_at_the_disk_where_the_store_would_be_without_creating_anything(tmp_path: Path) -> None:
    assert disk_line(tmp_path / "new" / "state")["level"] == "ok"
    assert list(tmp_path.iterdir()) == []
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    line = disk_line(shared)
    assert line["level"] == "error"
    assert "may be written by others" in line["found"]


def test_doctor_names_a_package_that_is_too_old_or_does_not_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "version", lambda _: "2.15.0")
    monkeypatch.setattr(machine, "requires", lambda _: ['confluent-kafka<3,>=2.16.1; extra == "kafka"', "rich>=13"])
    old, broken = (
        machine.check_package("confluent-kafka", "json", "pip install x"),
        machine.check_package("rich", "no.such.module", "pip install x"),
    )
    assert (old.level, old.remedy) == ("error", "pip install 'confluent-kafka<3,>=2.16.1'")
    assert (broken.level, broken.found) == ("error", "2.15.0 does not load: No module named 'no'")


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--topic", "orders"), "--topic needs brokers"),
        (("--cluster", "localhost:1", "--topic", "main:orders"), "give the topic alone"),
        (("--cluster", "localhost:1", "--clusters", "FILE"), "give either"),
        (("--clusters", "FILE", "--topic", "orders"), "SYSTEM:NAME with one of main"),
    ],
)
def test_doctor_refuses_topics_without_their_cluster(tmp_path: Path, options: tuple[str, ...], why: str) -> None:
    file = tmp_path / "clusters.toml"
    file.write_text('[clusters.main]\nbootstrap_servers = "localhost:1"\n')
    said = onceward("doctor", *(option.replace("FILE", str(file)) for option in options))
    assert said.returncode == ExitCode.USAGE
    assert why in said.stderr
    assert said.stdout == ""


def test_doctor_does_not_pass_a_system_that_nothing_could_check() -> None:
    named = {"main": (NamedSystem(kind="unheard-of", configuration=None), ())}
    (line,) = clusters.check_clusters(named, "orders")
    assert line.level == "error"
    assert "kind unheard-of" in line.found


def test_serving_and_listing_load_neither_spark_nor_kafka_clients() -> None:
    code = (
        "import sys\n"
        "import onceward.operate.cli, onceward.operate.serve, onceward.operate.doctor.command\n"
        "import onceward.operate.listings, onceward.operate.operator_requests\n"
        "heavy = {'pyspark', 'confluent_kafka', 'kafka', 'pyarrow', 'pandas', 'py4j'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)\n"
    )
    checked = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert checked.returncode == 0, checked.stderr
