"""A refused start names the command that permits it. Each permission lets one start in, and is kept in the history."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from onceward.client.session import CoordinatorClient, Session, connect
from onceward.common.errors import ExitCode, FencedError, JobBusyError, RefusedError
from onceward.coordinator.service.embedded import EmbeddedCoordinator
from onceward.protocol.events import CloseReason
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.values import CheckpointId, Claim, Generation, JobName
from tests.support.commands import onceward
from tests.support.scripted import SINK, SOURCE
from tests.support.waiting import wait_until

ORDERS = JobName("orders")
FORMER = Claim(store_id="f0:re", generation=Generation(4), completed=CheckpointId(17), holder="d0")
REASON = "Ada: its disk is gone"


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    with EmbeddedCoordinator(tmp_path) as coordinator:
        yield coordinator.address


def opened(client: CoordinatorClient, driver: str, claim: Claim | None = None) -> Session:
    """Open the job without waiting for another driver."""
    settings = CheckpointSettings(interval=None)
    return client.open_job(ORDERS, (SOURCE, SINK), settings, claim, driver=driver, wait="0s")


def listed(*place: str) -> str:
    """Return what ``onceward jobs`` prints, in one line."""
    return " ".join(onceward("jobs", *place).stdout.split())


def history_of(*place: str) -> dict[str, str]:
    """Return the history's last detail of each kind of event."""
    events = json.loads(onceward("history", "orders", "--json", *place).stdout)["events"]
    return {one["event"]: one["detail"] for one in reversed(events)}


def test_takeover_lets_the_next_driver_replace_the_live_one_and_no_later_driver(address: str) -> None:
    command = ("takeover", "orders", "--reason", REASON, "--coordinator", address)
    with connect(address) as client:
        first = opened(client, "first")
        with pytest.raises(JobBusyError, match="onceward takeover orders --reason WHY"):
            opened(client, "second")
        permitted, again = onceward(*command), onceward(*command)
        for said in (permitted, again):
            assert (said.returncode, "generation 1" in said.stdout) == (0, True), said.stderr
        assert "permitted before" in again.stdout
        assert "may replace the live one" in listed("--coordinator", address)
        second = opened(client, "second")
        assert "may replace the live one" not in listed("--coordinator", address)
        with pytest.raises(FencedError):
            first.renew()
        with pytest.raises(RefusedError, match="generation 2 of orders has a living driver"):
            opened(client, "third")
        second.close(CloseReason.STOPPED)
        first.let_go()
    assert REASON in history_of("--coordinator", address)["TakeoverPermitted"]


def test_takeover_is_refused_where_it_could_not_help(address: str, tmp_path: Path) -> None:
    with connect(address) as client:
        opened(client, "first").close(CloseReason.STOPPED)
    late = onceward("takeover", "orders", "--reason", REASON, "--coordinator", address)
    assert (late.returncode, "no live driver" in late.stderr) == (ExitCode.USAGE, True)
    embedded = onceward("takeover", "orders", "--reason", REASON, "--state-dir", str(tmp_path))
    assert (embedded.returncode, "a second driver cannot use its directory" in embedded.stderr) == (
        ExitCode.USAGE,
        True,
    )


def test_adopt_permits_the_refused_start_of_a_program_that_has_ended_and_no_other(tmp_path: Path) -> None:
    place = ("--state-dir", str(tmp_path))
    with (
        EmbeddedCoordinator(tmp_path) as coordinator,
        connect(coordinator.address) as client,
        pytest.raises(RefusedError) as refused,
    ):
        opened(client, "first", FORMER)
    named = re.search(r"onceward (adopt orders --claim \S+) --reason WHY\.$", str(refused.value))
    assert named is not None, "the refusal names the command"
    command = (*named[1].split(), "--reason", REASON, *place)

    unconfirmed = onceward(*command)
    assert (unconfirmed.returncode, "--yes" in unconfirmed.stderr) == (ExitCode.USAGE, True)
    permitted, again = onceward(*command, "--yes"), onceward(*command, "--yes")
    for said in (permitted, again):
        assert (said.returncode, "store f0:re (generation 4, through checkpoint 17)" in said.stdout) == (0, True)
    assert "permitted before" in again.stdout
    pending = "may adopt the claim of store f0:re (generation 4, through checkpoint 17)"
    assert pending in listed(*place)

    with EmbeddedCoordinator(tmp_path) as coordinator, connect(coordinator.address) as client:
        with pytest.raises(RefusedError, match="through checkpoint 18"):
            opened(client, "first", Claim(store_id="f0:re", generation=Generation(4), completed=CheckpointId(18)))
        session = opened(client, "first", FORMER)
        assert session.generation == 5
        instructions: list[object] = []
        session.start_watch(instructions.append)  # what a driver does once it has replaced the claim
        wait_until(lambda: bool(instructions), "a checkpoint is triggered")
        session.close(CloseReason.STOPPED)
        with pytest.raises(RefusedError, match="belongs to store f0:re"):
            opened(client, "second", FORMER)
    assert pending not in listed(*place)
    history = history_of(*place)
    assert REASON in history["AdoptionPermitted"]
    assert "adopting the claim of store f0:re" in history["GenerationGranted"]


@pytest.mark.parametrize("named", ["store", "store:4", "store:x:17", ":4:17", "store:-4:17"])
def test_adopt_needs_a_whole_claim(address: str, named: str) -> None:
    said = onceward("adopt", "orders", "--claim", named, "--reason", REASON, "--yes", "--coordinator", address)
    assert (said.returncode, "names no claim" in said.stderr) == (ExitCode.USAGE, True)
    assert onceward("jobs", "--json", "--coordinator", address).stdout.strip() == "[]"
