"""``onceward top``: jobs in trouble come first."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from onceward.client.session import connect
from onceward.common.errors import ExitCode
from onceward.coordinator.service.embedded import EmbeddedCoordinator
from onceward.operate.top import by_trouble
from onceward.protocol.committing import Age
from onceward.protocol.read_progress import ReadProgress
from onceward.protocol.settings import CheckpointSettings
from onceward.protocol.status import JobStatus
from onceward.protocol.values import (
    NO_CHECKPOINT,
    CheckpointId,
    Generation,
    JobName,
)
from onceward.wire.rows import JobSummary, JobWait
from tests.support.commands import onceward
from tests.support.scripted import SINK, SOURCE
from tests.unit.operate.halted import halted

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
HEALTHY = JobSummary(
    job=JobName("orders"), status=JobStatus.RUNNING, status_detail="", generation=Generation(1),
    last_checkpoint=CheckpointId(7), last_completed=CheckpointId(6), last_completed_at=NOW, settled=True, ending=None,
    failures=0, failure="", open_requests=(), unreadable="", restore_from=NO_CHECKPOINT, restore_reason="", orphan="",
    unacknowledged_losses=0, oldest_transaction=None, waits=(JobWait(what="data", since=NOW),),
    takeover_permitted=False, adoption_permitted=None,
)  # fmt: skip


def age(minutes: float) -> Age:
    return Age(transaction="t", open_for=timedelta(minutes=minutes), timeout=timedelta(minutes=15))


@pytest.mark.parametrize(
    ("worse", "better"),
    [
        (replace(HEALTHY, status=JobStatus.HALTED), replace(HEALTHY, unacknowledged_losses=2)),
        (replace(HEALTHY, unacknowledged_losses=2), replace(HEALTHY, oldest_transaction=age(8))),
        (replace(HEALTHY, oldest_transaction=age(8)), replace(HEALTHY, failures=3)),
        (replace(HEALTHY, failures=3), replace(HEALTHY, status=JobStatus.SUSPENDED, settled=False)),
        (
            replace(HEALTHY, status=JobStatus.SUSPENDED, settled=False),
            replace(HEALTHY, waits=(JobWait(what="a broker", since=NOW - timedelta(minutes=1)),)),
        ),
        (replace(HEALTHY, waits=(JobWait(what="a broker", since=NOW - timedelta(minutes=1)),)), HEALTHY),
        (replace(HEALTHY, oldest_transaction=age(1)), replace(HEALTHY, status=JobStatus.FINISHED)),
    ],
)
def test_the_job_that_needs_a_person_more_comes_first(worse: JobSummary, better: JobSummary) -> None:
    assert by_trouble(worse, NOW) < by_trouble(better, NOW)


def test_an_overview_without_a_terminal_is_printed_on_request(tmp_path: Path) -> None:
    halted(tmp_path)
    refused = onceward("top", "--state-dir", str(tmp_path))
    assert (refused.returncode, refused.stdout) == (ExitCode.USAGE, "")
    assert "needs a terminal" in refused.stderr
    with EmbeddedCoordinator(tmp_path) as coordinator, connect(coordinator.address) as client:
        session = client.open_job(JobName("bills"), (SOURCE, SINK), CheckpointSettings(), None, driver="d")
        session.report_progress(lambda: ReadProgress(lag=12_300, measured_ago=timedelta(0), records_per_second=512.4))
        session.renew()
        shown = onceward("top", "--once", "--coordinator", coordinator.address)
        listed = onceward("jobs", "--coordinator", coordinator.address)
    assert (shown.returncode, listed.returncode) == (ExitCode.HALTED, ExitCode.HALTED)
    lines = shown.stdout.splitlines()
    assert re.search(r" lag +records/s ", lines[0])
    assert re.match(r"orders +halted .* - +- +- ", lines[1]), "the one in trouble is first, its lag is unknown"
    assert re.match(r"bills +running .* 12.3 k +512 .*waits for ", lines[2])
