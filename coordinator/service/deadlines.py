"""The next deadline of each job, in a heap, so that a thousand jobs cost as little as ten."""

import heapq

from onceward.protocol.values import JobName

__all__ = ["Deadlines"]

_SLACK = 64


class Deadlines:
    """One deadline per job, in monotonic seconds. A changed deadline leaves its old entry in the heap until that comes
    up."""

    def __init__(self) -> None:
        self._now: dict[JobName, float] = {}
        self._heap: list[tuple[float, JobName]] = []

    def note(self, job: JobName, deadline: float | None) -> None:
        """Set the job's deadline; None removes it."""
        if deadline is None:
            self._now.pop(job, None)
        elif self._now.get(job) != deadline:
            self._now[job] = deadline
            heapq.heappush(self._heap, (deadline, job))
            if len(self._heap) > 2 * len(self._now) + _SLACK:
                self._heap = [(deadline, job) for job, deadline in self._now.items()]
                heapq.heapify(self._heap)

    def first(self) -> float | None:
        """The earliest deadline."""
        self._drop_outdated()
        return self._heap[0][0] if self._heap else None

    def pop(self, now: float) -> JobName | None:
        """Remove and return the job with the earliest deadline; None when none is due by ``now``."""
        self._drop_outdated()
        if not self._heap or self._heap[0][0] > now:
            return None
        _, job = heapq.heappop(self._heap)
        del self._now[job]
        return job

    def _drop_outdated(self) -> None:
        while self._heap and self._now.get(self._heap[0][1]) != self._heap[0][0]:
            heapq.heappop(self._heap)
