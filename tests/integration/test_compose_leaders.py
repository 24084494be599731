"""compose/leaders.yaml as plain processes: its certificates, its two coordinators over mTLS on a real PostgreSQL, and
commands with the job's certificate while the leader dies. Only locations differ."""

import re
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from onceward.coordinator.dev.kafka.places import free_ports
from onceward.coordinator.dev.managed_process import OURS
from onceward.coordinator.dev.postgres.binaries import is_offered
from onceward.coordinator.dev.postgres.server import LocalPostgres
from onceward.coordinator.errors import ExitCode
from tests.support.compose import Service, topology
from tests.support.processes import ONCEWARD, Process
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(600)

COORDINATORS = ("coordinator", "coordinator-2")


class Leaders:
    """The file's services, without the brokers and the job."""

    def __init__(self, directory: Path, postgres: LocalPostgres, cleanup: ExitStack) -> None:
        self._directory, self._cleanup = directory, cleanup
        self._topology = topology("leaders")
        self._runs = 0
        self.addresses = dict(
            zip(COORDINATORS, (f"127.0.0.1:{ports.client}" for ports in free_ports(2, None)), strict=True)
        )
        self._store = f"@127.0.0.1:{postgres.port}/"
        for volume in self._topology.model["volumes"]:
            (directory / volume).mkdir()
        (directory / "etc").mkdir()

    def start(self, name: str, command: Sequence[str] = ()) -> Process:
        """Start a service with its own command, or with another one."""
        service = self._topology.services[name]
        for target, file in self._topology.config_files(service).items():
            Path(self._here(target, service)).write_text(file.read_text())
        words = [self._here(word, service) for word in command or service.command]
        if words[0] == "onceward":
            words[:1] = [sys.executable, *ONCEWARD]
        given = {name: self._here(value, service) for name, value in service.environment.items()}
        self._runs += 1
        log = self._directory / f"{name}-{self._runs}.log"
        process = Process(words, log, {**given, "PYTHONPATH": OURS}, self._directory)
        self._cleanup.callback(process.end)
        return process

    def run(self, name: str, *command: str) -> tuple[int, str]:
        process = self.start(name, command)
        return process.wait(), process.tail()

    def healthy(self, name: str) -> bool:
        """Whether the service's own check says so."""
        return self.run(name, *self._topology.services[name].health)[0] == 0

    def _here(self, text: str, service: Service) -> str:
        own = self.addresses.get(service.name, "")
        for listen in ("0.0.0.0:7878", "127.0.0.1:7878"):
            text = text.replace(listen, own)
        for name, address in self.addresses.items():
            text = re.sub(rf"(?<![\w-]){name}:7878", address, text)
        for volume, (target, _) in service.mounts.items():
            text = re.sub(rf"{target}(?![\w.-])", str(self._directory / volume), text)
        return text.replace("@postgres:5432/", self._store).replace("/etc/onceward", str(self._directory / "etc"))


@pytest.fixture
def own_postgres() -> Iterator[LocalPostgres]:
    """One that the test may stop."""
    if not is_offered():
        pytest.skip("there is no PostgreSQL to fetch for this machine")
    with LocalPostgres() as local:
        yield local


def test_either_coordinator_may_die_and_no_state_of_the_database_ends_one(
    tmp_path: Path, own_postgres: LocalPostgres
) -> None:
    with ExitStack() as cleanup:
        here = Leaders(tmp_path, own_postgres, cleanup)
        code, said = here.run("secrets")
        assert code == 0, said
        authority = tmp_path / "job-secrets" / "ca.pem"
        made = authority.read_bytes()
        assert here.run("secrets")[0] == 0, "it is run by every `up`"
        assert authority.read_bytes() == made
        assert {path.name for path in (tmp_path / "job-secrets").iterdir()} == {"ca.pem", "own.pem", "own.key"}
        for path in (*tmp_path.glob("*-secrets/own.key"), tmp_path / "coordinator-secrets" / "rights.toml"):
            assert path.stat().st_mode & 0o077 == 0, path

        leader = here.start("coordinator")
        wait_until(lambda: "listens on" in leader.tail() or not leader.running, "the first coordinator leads")
        standby = here.start("coordinator-2")
        for name in COORDINATORS:
            wait_until(lambda name=name: here.healthy(name), f"{name} could lead")  # type: ignore[misc]
        assert "stands by" in standby.tail()
        listed, said = here.run("check", "onceward", "jobs")
        assert listed == 0, said
        refused, said = here.run("check", "onceward", "stop", "flights")
        assert refused == ExitCode.USAGE
        assert "flights lacks the right operate for job flights" in said

        leader.send(signal.SIGKILL)
        wait_until(lambda: "event=leads" in standby.tail(), "the other one leads")
        assert here.run("check", "onceward", "jobs")[0] == 0

        own_postgres.kill()
        live = ["onceward", "health", "--live", f"--coordinator={here.addresses['coordinator-2']}"]
        wait_until(lambda: not here.healthy("coordinator-2"), "without its database it is not ready")
        assert here.run("coordinator-2", *live)[0] == 0, standby.tail()
        assert standby.running
        own_postgres.restart()
        wait_until(lambda: here.healthy("coordinator-2"), "it could lead again")
        assert here.run("check", "onceward", "jobs")[0] == 0
