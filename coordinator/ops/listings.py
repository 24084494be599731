"""``onceward jobs``, ``onceward checkpoints``, ``onceward stop``: ask a coordinator, show the answer."""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
from coordinator.service.embedded import EmbeddedCoordinator
from coordinator.service.places import StateDirectory, state_directory
from coordinator.store.errors import StoreUnusableError

__all__ = ["list_checkpoints", "list_jobs", "operators", "stop_job"]

_WIDTH_OF_A_PIPE = 400


@contextmanager
def operators(coordinator: str | None, state_dir: Path | None) -> Iterator[OperatorClient]:
    """A client of the coordinator at the address given, or of a job's own one, found through its directory.

    A directory that no job uses now is served for the moment, so that history outlives every process.
    """
    with ExitStack() as stack:
        if coordinator is not None and state_dir is None:
            address = coordinator
        else:
            directory = StateDirectory(state_directory(state_dir))
            address = _served_for_the_moment(directory, stack) or directory.published()
        yield stack.enter_context(OperatorClient(address))


def _served_for_the_moment(directory: StateDirectory, stack: ExitStack) -> str | None:
    """The address of a coordinator that ends with ``stack``; None when there is no store, or its owner is running."""
    if not directory.has_store:
        return None
    try:
        embedded = EmbeddedCoordinator(directory.path)
    except StoreUnusableError:
        return None
    stack.callback(embedded.close)
    return embedded.address


def list_jobs(coordinator: str | None, state_dir: Path | None, *, as_json: bool) -> None:
    with operators(coordinator, state_dir) as client:
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
    with operators(coordinator, state_dir) as client:
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
    with operators(coordinator, state_dir) as client:
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
        # a pipe has no width to wrap at
        width = None if sys.stdout.isatty() else _WIDTH_OF_A_PIPE
        Console(markup=False, highlight=False, width=width).print(table)
    else:
        print(if_empty)


def _shown(time: datetime | None) -> str:
    return time.astimezone().strftime("%Y-%m-%d %H:%M:%S") if time is not None else "-"


def _took(begin: datetime | None, end: datetime | None) -> str:
    return f"{(end - begin).total_seconds():.3f} s" if begin is not None and end is not None else "-"
