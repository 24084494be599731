"""How large a store grows: the real engine and the real store, without gRPC, on a clock that the benchmark moves."""

import itertools
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks.coordinator.documents import PARTICIPANTS, SINK, SOURCE, read, settings, settlements, written
from benchmarks.percentiles import percentile
from onceward.coordinator.service.documents import Checkers
from onceward.coordinator.service.engine import CommitBatch, Engine
from onceward.coordinator.store.store import Store
from onceward.dev.postgres.server import LocalPostgres
from onceward.protocol.answers import Verdict
from onceward.protocol.events import Acknowledge, CloseJob, CloseReason, Event, OpenJob, Settle, Watch
from onceward.protocol.values import JobName, Snapshot

__all__ = ["JobsWithoutDrivers", "fill", "measure_decisions", "measure_size"]

SLOTS = 4
JOBS = 20
INTERVAL = "1s"
_MEASURED = 10
"""Sizes taken over the whole run."""


def measure_size(directory: Path, checkpoints: int) -> list[dict[str, Any]]:
    """The store's size each time another tenth of ``checkpoints`` is completed, settled and subject to retention."""
    directory.mkdir(mode=0o700, parents=True)
    rows: list[dict[str, Any]] = []
    rounds = max(checkpoints // JOBS, _MEASURED)
    with _jobs(directory / "store.db", JOBS) as jobs:
        begun = time.perf_counter()
        for number in range(1, rounds + 1):
            jobs.checkpoint()
            if number % (rounds // _MEASURED) == 0:
                rows.append(
                    {
                        "checkpoints": number * JOBS,
                        "file_mb": round((directory / "store.db").stat().st_size / 1e6, 2),
                        "log_mb": round((directory / "store.db-wal").stat().st_size / 1e6, 2),
                        "seconds": round(time.perf_counter() - begun, 1),
                    }
                )
    return rows


def measure_decisions(directory: Path, checkpoints: int) -> list[dict[str, Any]]:
    """A row for SQLite and one for a PostgreSQL of its own: how long the store takes to write the decision on a
    checkpoint of one job."""
    directory.mkdir(mode=0o700, parents=True)
    with LocalPostgres() as postgres:
        stores = {"sqlite": f"sqlite:///{directory / 'store.db'}", "postgresql": postgres.url}
        return [{"store": name, **_decisions(url, checkpoints)} for name, url in stores.items()]


def _decisions(url: str, checkpoints: int) -> dict[str, Any]:
    store, decided = Store.open(url), list[float]()
    try:
        jobs = JobsWithoutDrivers(store, 1)
        for _ in range(checkpoints):
            jobs.checkpoint(decided)
    finally:
        store.close()
    return {
        "decisions": len(decided),
        "write_p50_ms": round(statistics.median(decided) * 1000, 2),
        "write_p99_ms": round(percentile(decided, 0.99) * 1000, 2),
    }


@contextmanager
def _jobs(file: Path, number: int) -> "Iterator[JobsWithoutDrivers]":
    store = Store.open(f"sqlite:///{file}")
    try:
        yield JobsWithoutDrivers(store, number)
    finally:
        store.close()


def fill(file: Path, jobs: int, checkpoints: int) -> None:
    """A store as ``jobs`` leave it that stopped after ``checkpoints`` completed ones."""
    with _jobs(file, jobs) as running:
        for _ in range(checkpoints):
            running.checkpoint()
        running.stop()


class JobsWithoutDrivers:
    """Jobs that take their checkpoints together, each step of all of them in one write."""

    def __init__(self, store: Store, jobs: int) -> None:
        self._now = 1_000.0
        self._began = datetime.now(UTC)
        self._engine = Engine(store, clock=lambda: self._now, wall=self._wall, checkers=Checkers.installed())
        self._jobs = [JobName(f"job-{number}") for number in range(jobs)]
        self._together(lambda _job: self._opened())
        self._together(lambda job: Watch(now=self._now, generation=self._engine.state(job).durable.generation))
        self._written: dict[JobName, Snapshot] = {job: Snapshot() for job in self._jobs}
        self.checkpoint()

    def checkpoint(self, decided: list[float] | None = None) -> None:
        """One of each job: triggered, acknowledged, completed, settled; then what retention does not keep goes.

        ``decided``: gets the seconds in which the store has written each decision.
        """
        self._now += 1.0
        for job in self._jobs:
            durable = self._engine.state(job).durable
            if durable.base:
                self._written[job] = written(job, durable.generation, durable.last_id, SLOTS)
        self._together(lambda job: self._acknowledge(job, source=True))
        self._together(lambda job: self._acknowledge(job, source=False), decided)
        if any(snapshot.committables for snapshot in self._written.values()):
            self._together(self._settle)
        self._now += 1.0
        self._let_time_act()
        while chores := self._engine.chores(self._now, len(self._jobs)):
            self._engine.do(chores)

    def stop(self) -> None:
        """Every driver leaves, so that the next one need not wait for the end of a lease."""
        self._together(
            lambda job: CloseJob(
                now=self._now,
                generation=self._engine.state(job).durable.generation,
                reason=CloseReason.STOPPED,
            )
        )

    def _together(self, event: Callable[[JobName], Event], took: list[float] | None = None) -> None:
        for some in _some(self._jobs, 100):
            batch = CommitBatch()
            for job in some:
                answer = self._engine.work_out(batch, job, event(job))
                if answer.verdict is not Verdict.ACCEPTED:
                    raise SystemExit(f"job {job}: {answer.verdict}: {answer.detail}")
            begun = time.perf_counter()
            self._engine.keep(batch)
            if took is not None:
                took.append(time.perf_counter() - begun)
            self._engine.publish(batch)

    def _let_time_act(self) -> None:
        batch = CommitBatch()
        self._engine.due(batch, len(self._jobs))
        self._engine.keep(batch)
        self._engine.publish(batch)

    def _opened(self) -> OpenJob:
        return OpenJob(
            now=self._now, driver="driver", participants=PARTICIPANTS, settings=settings(INTERVAL), claim=None
        )

    def _acknowledge(self, job: JobName, *, source: bool) -> Acknowledge:
        durable = self._engine.state(job).durable
        assert durable.pending is not None
        return Acknowledge(
            now=self._now,
            generation=durable.generation,
            checkpoint=durable.pending.id,
            participant=SOURCE if source else SINK,
            base=durable.pending.base,
            snapshot=read(durable.pending.id) if source else self._written[job],
        )

    def _settle(self, job: JobName) -> Settle:
        durable = self._engine.state(job).durable
        return Settle(
            now=self._now,
            generation=durable.generation,
            checkpoint=durable.base,
            participant=SINK,
            settlements=tuple(settlements(self._written[job])),
        )

    def _wall(self) -> datetime:
        return self._began + timedelta(seconds=self._now)


def _some(jobs: Iterable[JobName], most: int) -> Iterator[list[JobName]]:
    rest = iter(jobs)
    while taken := list(itertools.islice(rest, most)):
        yield taken
