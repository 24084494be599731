"""What the page shows, read by the calls of the commands. All open pages of a visitor share an answer for a moment.

Each call carries the visitor's own token, so the coordinator itself holds visitors to their rights.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

import grpc

from onceward.client.access import with_known_token
from onceward.client.calls import open_channel
from onceward.client.operators import OperatorClient
from onceward.common.errors import CoordinatorLostError
from onceward.connectors.letters import DEAD_LETTERS
from onceward.protocol.status import JobStatus
from onceward.protocol.values import JobName
from onceward.wire.rows import (
    CheckpointDescription,
    CheckpointSummary,
    CoordinatorDescription,
    GenerationSummary,
    HistoryEntry,
    JobDescription,
    JobSummary,
    LossReport,
)

__all__ = ["CheckpointView", "CoordinatorView", "JobView", "Jobs", "Reader"]

T = TypeVar("T")

_PATIENCE = "500ms"
_KEPT_S = 1.0
_SHARE = 20
"""An answer is kept for at least this many times what it took: reading takes at most a twentieth of a core."""
_MAX_KEPT = 64
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
    """Each with what it keeps of the job's dead letters."""
    halted_at: CheckpointDescription | None
    """The checkpoint whose slots a person must decide about; None if there are none."""
    losses: Sequence[LossReport]
    """Unacknowledged ones."""
    generations: Sequence[GenerationSummary]
    events: Sequence[HistoryEntry]
    read_at: datetime


@dataclass(frozen=True, kw_only=True)
class CheckpointView:
    """One checkpoint of a job."""

    job: JobName
    description: CheckpointDescription
    read_at: datetime


@dataclass(frozen=True, kw_only=True)
class CoordinatorView:
    """The coordinator in this process, and the one that leads."""

    description: CoordinatorDescription
    read_at: datetime


@dataclass
class _Kept:
    """One kept answer. Its lock makes pages that want the same thing wait for one call."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    answer: Any = None
    until: float = float("-inf")


class Reader:
    """Reads from the coordinator in this process. Thread-safe. Its methods raise OncewardError: RefusedError for what
    does not exist, or what the visitor may not view.

    A visitor is a token; empty for one that has shown none.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.address = ""
        """That clients reach; empty until the coordinator listens."""
        self._clock = clock
        self._lock = threading.Lock()
        self._channel: grpc.Channel | None = None
        self._own_address = ""
        self._kept: dict[tuple[str, str], _Kept] = {}

    def attach(self, own_address: str, address: str) -> None:
        """Read from now on.

        :param own_address: where this process listens.
        :param address: the one to show to people.
        """
        self._own_address, self.address = own_address, address

    def admit(self, visitor: str) -> None:
        """Raise RefusedError unless the visitor may view something."""
        self._client(visitor).coordinator()

    def jobs(self, visitor: str) -> Jobs:
        def read() -> Jobs:
            found = [job for job in self._client(visitor).jobs() if job.status is not JobStatus.FORGOTTEN]
            return Jobs(jobs=found, read_at=datetime.now(UTC))

        return self._shared(visitor, "", read)

    def job(self, visitor: str, job: JobName) -> JobView:
        def read() -> JobView:
            client = self._client(visitor)
            description = client.describe(job)
            summary = description.summary
            kept_by = DEAD_LETTERS if any(one.name == DEAD_LETTERS for one in description.participants) else None
            return JobView(
                description=description,
                checkpoints=client.checkpoints(job, _CHECKPOINTS, kept_by=kept_by),
                halted_at=client.checkpoint(job, summary.last_completed) if description.unresolved else None,
                losses=client.losses(job, _LOSSES) if summary.unacknowledged_losses else (),
                generations=client.generations(job, _GENERATIONS),
                events=client.history(job, _EVENTS),
                read_at=datetime.now(UTC),
            )

        return self._shared(visitor, job, read)

    def checkpoint(self, visitor: str, job: JobName, number: int) -> CheckpointView:
        def read() -> CheckpointView:
            found = self._client(visitor).checkpoint(job, number)
            return CheckpointView(job=job, description=found, read_at=datetime.now(UTC))

        return self._shared(visitor, f"{job}/{number}", read)

    def coordinator(self, visitor: str) -> CoordinatorView:
        def read() -> CoordinatorView:
            return CoordinatorView(description=self._client(visitor).coordinator(), read_at=datetime.now(UTC))

        return self._shared(visitor, "/cluster", read)

    def close(self) -> None:
        with self._lock:
            if self._channel is not None:
                self._channel.close()

    def _client(self, visitor: str) -> OperatorClient:
        """Return a client that shares the one connection; it is not closed."""
        with self._lock:
            if not self._own_address:
                raise CoordinatorLostError("The coordinator starts. Nothing is known of its jobs yet.")
            if self._channel is None:
                self._channel = open_channel(self._own_address)
            channel = with_known_token(self._channel, visitor) if visitor else self._channel
        return OperatorClient.over(channel, self._own_address, patience=_PATIENCE)

    def _shared(self, visitor: str, view: str, read: Callable[[], T]) -> T:
        key = visitor, view
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
