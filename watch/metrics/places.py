"""Bounds the number of series: a job that finds no free place shares the series of all others without one."""

from collections.abc import Iterable

from onceward.protocol.values import JobName

__all__ = ["MAX_JOBS", "OTHERS", "Places"]

MAX_JOBS = 500
"""Jobs with series of their own."""
OTHERS = "_others"
"""Their label. No job can have this name."""


class Places:
    """Which jobs have series of their own. A job keeps its place until it is forgotten: no counter decreases."""

    def __init__(self, most: int = MAX_JOBS) -> None:
        self._most = most
        self._taken: set[JobName] = set()

    def label(self, job: JobName) -> str:
        """The label of ``job``, which takes a place if one is free."""
        if job not in self._taken:
            if len(self._taken) >= self._most:
                return OTHERS
            self._taken.add(job)
        return job

    def label_now(self, job: JobName) -> str:
        """The label of ``job``; takes no place. May be called in any thread."""
        return job if job in self._taken else OTHERS

    def leave(self, job: JobName) -> None:
        """Free the place of ``job``."""
        self._taken.discard(job)

    def keep_only(self, jobs: Iterable[JobName]) -> None:
        """Free the places of all others."""
        self._taken &= set(jobs)
