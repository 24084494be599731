"""Rows of listings, of which a test gives only what it is about."""

from datetime import UTC, datetime, timedelta
from typing import Any

from onceward.protocol.status import JobStatus
from onceward.protocol.values import CheckpointId, CheckpointKind, CheckpointState, Generation, JobName
from onceward.wire.rows import CheckpointSummary, JobSummary

__all__ = ["NOW", "checkpoint", "job"]

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def job(name: str, **given: Any) -> JobSummary:
    usual: dict[str, Any] = {
        "job": JobName(name),
        "status": JobStatus.RUNNING,
        "status_detail": "",
        "generation": Generation(1),
        "last_checkpoint": CheckpointId(1),
        "last_completed": CheckpointId(1),
        "last_completed_at": NOW,
        "settled": True,
        "ending": None,
        "failures": 0,
        "failure": "",
        "open_requests": (),
        "unreadable": "",
        "restore_from": CheckpointId(0),
        "restore_reason": "",
        "orphan": "",
        "unacknowledged_losses": 0,
        "waits": (),
        "oldest_transaction": None,
        "takeover_permitted": False,
        "adoption_permitted": None,
    }
    return JobSummary(**usual | given)


def checkpoint(**given: Any) -> CheckpointSummary:
    usual: dict[str, Any] = {
        "checkpoint": CheckpointId(2),
        "base": CheckpointId(1),
        "generation": Generation(1),
        "kind": CheckpointKind.CHECKPOINT,
        "name": "",
        "state": CheckpointState.SETTLED,
        "abort_reason": None,
        "detail": "",
        "triggered_at": NOW,
        "decided_at": None,
        "settled_at": None,
        "waited": timedelta(seconds=1),
        "ran": timedelta(seconds=2),
        "decided": timedelta(0),
        "settled": timedelta(seconds=7),
        "records_read": 0,
        "records_written": 0,
        "bytes_read": 0,
        "bytes_written": 0,
        "committables": 0,
        "amendment": 0,
    }
    return CheckpointSummary(**usual | given)
