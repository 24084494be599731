"""What the page shows, read by the calls of the commands. All open pages share an answer for a moment."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

from onceward.coordinator.client.operators import OperatorClient
from onceward.coordinator.errors import CoordinatorLostError
from onceward.coordinator.listings import (
    CheckpointDescription,
    CheckpointSummary,
    GenerationSummary,
    HistoryEntry,
    JobDescription,
    JobSummary,
    LossReport,
)
from onceward.coordinator.protocol.status import JobStatus
from onceward.coordinator.protocol.values import JobName

__all__ = ["JobView", "Jobs", "Reader"]

T = TypeVar("T")

_PATIENCE = "500ms"
_KEPT_S = 1.0
_SHARE = 20
"""An answer is kept for at least this many times what it took: reading takes at most a twentieth of a core."""
_MAX_KEPT = 16
_CHECKPOINTS = 30
_GENERATIONS = 10
_EVENTS = 30
_LOSSES = 20


@dataclass(frozen=True, kw_only=True)
class Jobs:
    """All jobs but forgotten ones, by name."""

    jobs: Sequence[JobSummary]
    read_at: datetime


@dataclass(frozen=True, kw_only=True)
class JobView:
    """One job. Lists are newest first, and bounded."""

    description: JobDescription
    checkpoints: Sequence[CheckpointSummary]
    halted_at: CheckpointDescription | None
    """The checkpoint whose slots a person must decide about; None if there are none."""
    losses: Sequence[LossReport]
    """Unacknowledged ones."""
    generations: Sequence[GenerationSummary]
    events: Sequence[HistoryEntry]
    read_at: datetime


@dataclass
class _Kept:
    """One kept answer. Its lock makes pages that want the same thing wait for one call."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    answer: Any = None
    until: float = float("-inf")


class Reader:
    """Reads from the coordinator in this process. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.address = ""
        """That clients reach; empty until the coordinator listens."""
        self._clock = clock
        self._lock = threading.Lock()
        self._client: OperatorClient | None = None
        self._own_address = ""
        self._kept: dict[str, _Kept] = {}

    def attach(self, own_address: str, address: str) -> None:
        """Read from now on.

        :param own_address: where this process listens.
        :param address: the one to show to people.
        """
        self._own_address, self.address = own_address, address

    def jobs(self) -> Jobs:
        """Raises OncewardError."""

        def read() -> Jobs:
            found = [job for job in self._connected().jobs() if job.status is not JobStatus.FORGOTTEN]
            return Jobs(jobs=found, read_at=datetime.now(UTC))

        return self._shared("", read)

    def job(self, job: JobName) -> JobView:
        """Raises OncewardError; RefusedError for an unknown job."""

        def read() -> JobView:
            client = self._connected()
            description = client.describe(job)
            summary = description.summary
            return JobView(
                description=description,
                checkpoints=client.checkpoints(job, _CHECKPOINTS),
                halted_at=client.checkpoint(job, summary.last_completed) if description.unresolved else None,
                losses=client.losses(job, _LOSSES) if summary.unacknowledged_losses else (),
                generations=client.generations(job, _GENERATIONS),
                events=client.history(job, _EVENTS),
                read_at=datetime.now(UTC),
            )

        return self._shared(job, read)

    def close(self) -> None:
        with self._lock:
            if self._client is not None:
                self._client.close()

    def _connected(self) -> OperatorClient:
        with self._lock:
            if not self._own_address:
                raise CoordinatorLostError("The coordinator starts. Nothing is known of its jobs yet.")
            if self._client is None:
                self._client = OperatorClient(self._own_address, patience=_PATIENCE)
            return self._client

    def _shared(self, key: str, read: Callable[[], T]) -> T:
        with self._lock:
            kept = self._kept.pop(key, None) or _Kept()
            self._kept[key] = kept  # the last one used is the last one
            while len(self._kept) > _MAX_KEPT:
                del self._kept[next(iter(self._kept))]
        with kept.lock:
            begun = self._clock()
            if begun >= kept.until:
                kept.answer = read()
                now = self._clock()
                kept.until = now + max(_KEPT_S, _SHARE * (now - begun))
            return cast(T, kept.answer)
