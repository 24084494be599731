"""``onceward state`` without Spark: what it refuses before it starts it."""

from pathlib import Path

import pytest

from onceward.coordinator.client.session import connect
from onceward.coordinator.errors import ExitCode
from onceward.coordinator.protocol.settings import CheckpointSettings
from onceward.coordinator.protocol.values import JobName
from onceward.coordinator.service.embedded import EmbeddedCoordinator
from tests.support.commands import onceward
from tests.support.scripted import SINK, SOURCE


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ((), ExitCode.USAGE, "has completed no batch of a Structured Streaming query"),
        (("--operator", "0", "--option", "joinSide"), ExitCode.USAGE, "'joinSide' is not NAME=VALUE"),
    ],
)
def test_state_of_a_job_without_a_query_and_options_without_a_value_are_refused(
    tmp_path: Path, words: tuple[str, ...], code: ExitCode, says: str
) -> None:
    with EmbeddedCoordinator(tmp_path) as coordinator, connect(coordinator.address) as client:
        client.open_job(
            JobName("orders"), (SOURCE, SINK), CheckpointSettings(interval=None), None, driver="d", wait="0s"
        )
        refused = onceward("state", "orders", "--coordinator", coordinator.address, *words)
    assert (refused.returncode, says in refused.stderr) == (code, True), (refused.stdout, refused.stderr)
