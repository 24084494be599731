"""``onceward jobs``, ``onceward checkpoints``, ``onceward stop``: ask a coordinator, show the answer."""

import json
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from coordinator.client.operators import CheckpointSummary, JobSummary, OperatorClient
from coordinator.errors import ConfigurationError, RefusedError
from coordinator.protocol.answers import Verdict
from coordinator.protocol.values import JobName
from coordinator.service.places import StateDirectory, state_directory

__all__ = ["address_of", "list_checkpoints", "list_jobs", "stop_job"]


def address_of(coordinator: str | None, state_dir: Path | None) -> str:
    """The address given, or the one that a job's own coordinator has left in its directory."""
    if coordinator is not None and state_dir is None:
        return coordinator
    return StateDirectory(state_directory(state_dir)).published()


def list_jobs(coordinator: str | None, state_dir: Path | None, *, as_json: bool) -> None:
    with OperatorClient(address_of(coordinator, state_dir)) as client:
        found = client.jobs()
    if as_json:
        _print_json(found)
        return
    table = _table("job", "status", "generation", "last checkpoint", "last completed", "at", "settled", "detail")
    for job in found:
        status = f"{job.status.value}, stop requested" if job.stop_requested else job.status.value
        table.add_row(
            job.job,
            status,
            str(job.generation),
            str(job.last_checkpoint or "-"),
            str(job.last_completed or "-"),
            _shown(job.last_completed_at),
            "yes" if job.settled else "no",
            job.status_detail,
        )
    _show(table, "There are no jobs.")


def list_checkpoints(job: str, limit: int, coordinator: str | None, state_dir: Path | None, *, as_json: bool) -> None:
    with OperatorClient(address_of(coordinator, state_dir)) as client:
        found = client.checkpoints(_job(job), limit)
    if as_json:
        _print_json(found)
        return
    table = _table(
        "checkpoint", "base", "generation", "state", "triggered", "took", "read", "written", "slots", "detail"
    )
    for checkpoint in found:
        why = checkpoint.abort_reason.value if checkpoint.abort_reason is not None else ""
        table.add_row(
            str(checkpoint.checkpoint),
            str(checkpoint.base or "-"),
            str(checkpoint.generation),
            checkpoint.state.value,
            _shown(checkpoint.triggered_at),
            _took(checkpoint.triggered_at, checkpoint.decided_at),
            str(checkpoint.records_read),
            str(checkpoint.records_written),
            str(checkpoint.committables),
            ": ".join(filter(None, (why, checkpoint.detail))),
        )
    _show(table, f"Job {job} has no stored checkpoints.")


def stop_job(job: str, coordinator: str | None, state_dir: Path | None) -> None:
    """Raises RefusedError when the job is unknown or not running."""
    with OperatorClient(address_of(coordinator, state_dir)) as client:
        answer = client.stop(_job(job))
    match answer.verdict:
        case Verdict.ACCEPTED:
            print(f"Job {job} was asked to stop; it leaves after settling.")
        case Verdict.DUPLICATE:
            print(f"Job {job} was asked to stop before.")
        case _:
            raise RefusedError(f"Job {job} was not stopped: {answer.detail}. Nothing was changed.")


def _job(text: str) -> JobName:
    try:
        return JobName(text)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None


def _print_json(values: list[JobSummary] | list[CheckpointSummary]) -> None:
    print(json.dumps([asdict(value) for value in values], default=_plain, indent=2))


def _plain(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    raise TypeError(f"{type(value).__name__} in a listing")


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _show(table: Table, if_empty: str) -> None:
    if table.row_count:
        Console(markup=False, highlight=False).print(table)
    else:
        print(if_empty)


def _shown(time: datetime | None) -> str:
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S") if time is not None else "-"


def _took(begin: datetime | None, end: datetime | None) -> str:
    return f"{(end - begin).total_seconds():.3f} s" if begin is not None and end is not None else "-"
