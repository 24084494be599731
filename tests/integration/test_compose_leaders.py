"""compose/leaders.yaml as plain processes: its certificates, its two coordinators over mTLS on a real PostgreSQL, its
job, and commands with the job's certificate, while the leader dies."""

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from onceward.common.errors import ExitCode
from onceward.dev.postgres.binaries import is_offered
from onceward.dev.postgres.server import LocalPostgres
from tests.integration.test_compose_quickstart import written
from tests.support.composed import Composed, composed
from tests.support.waiting import wait_until

COORDINATORS = ("coordinator", "coordinator-2")
FLIGHTS = 5000


@pytest.fixture
def own_postgres() -> Iterator[LocalPostgres]:
    """One that the test may stop."""
    if not is_offered():
        pytest.skip("there is no PostgreSQL to fetch for this machine")
    with LocalPostgres() as local:
        yield local


@pytest.mark.timeout(600)
def test_either_coordinator_may_die_and_no_state_of_the_database_ends_one(
    tmp_path: Path, own_postgres: LocalPostgres
) -> None:
    with ExitStack() as cleanup:
        here = Composed("leaders", tmp_path, cleanup, postgres=own_postgres)
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
        wait_until(lambda: "listens on" in leader.tail() or leader.exit_code is not None, "the first coordinator leads")
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
        assert standby.exit_code is None
        own_postgres.restart()
        wait_until(lambda: here.healthy("coordinator-2"), "it could lead again")
        assert here.run("check", "onceward", "jobs")[0] == 0


@pytest.mark.slow
@pytest.mark.compose
@pytest.mark.timeout(900)
def test_a_job_over_mtls_comes_to_its_pass_although_its_leader_dies(
    tmp_path: Path, own_postgres: LocalPostgres
) -> None:
    """Send fewer flights, and faster, than the file's own feeder does."""
    changed = {"feeder": ["--seconds=5", f"--limit={FLIGHTS}"]}
    with composed("leaders", tmp_path, changed=changed, postgres=own_postgres) as here:
        here.up()
        assert here.ended("feeder") == 0, here.said("feeder")
        here.kill("coordinator")
        wait_until(lambda: "event=leads" in here.said("coordinator-2"), "the other one leads")
        code, said = here.verdict(written(FLIGHTS))
        assert code == 0, said
        assert "exactly once: PASS" in said
        assert here.stop("job") == 0, here.said("job")
        assert "generation=2" not in here.said("job"), "its driver was not fenced"
