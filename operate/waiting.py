"""Wait until a job has done what was requested, and report meanwhile what it waits for."""

import time
from collections.abc import Callable
from typing import TypeVar

from onceward.client.operators import OperatorClient
from onceward.common.errors import ConfigurationError, CoordinatorLostError, HaltedError, OncewardError
from onceward.operate.connecting import CoordinatorLocation, operators
from onceward.operate.prompts import say
from onceward.protocol.status import JobStatus
from onceward.protocol.values import JobName
from onceward.wire.rows import JobSummary

__all__ = ["until", "until_ended"]

T = TypeVar("T")

_POLL_S = 0.1
_PATIENCE_S = 60.0
"""A command waits for a restarting coordinator as long as a driver does."""
_NEWS_S = 1.0
"""Minimum time between lines about progress that changes."""
_REMINDER_S = 10.0
"""Time between lines while the progress does not change."""


def until(place: CoordinatorLocation, job: JobName, found: Callable[[OperatorClient], T | None]) -> T:
    """Ask until there is an answer. The coordinator may restart meanwhile. An embedded one ends with its driver: then
    its directory has the answer.

    Raises CoordinatorLostError, and OncewardError when the driver ended without doing what was requested.
    """
    answered_at = time.monotonic()
    while True:
        try:
            with operators(place, patience=0) as (client, momentary):
                while (answer := found(client)) is None:
                    if momentary:  # waiting would keep the next driver out of its directory
                        raise OncewardError(
                            f"The program of job {job} ended before it carried out the request. Completed checkpoints "
                            "stay completed, the rest is read again. Start the program to continue. See onceward jobs "
                            f"and onceward history {job}."
                        )
                    answered_at = time.monotonic()
                    time.sleep(_POLL_S)
                return answer
        except (CoordinatorLostError, ConfigurationError):
            if time.monotonic() - answered_at >= _PATIENCE_S:
                raise
            time.sleep(_POLL_S)


def until_ended(place: CoordinatorLocation, job: JobName) -> str:
    """Wait until ``job`` has reached the end that was requested; return a description of it.

    Raises HaltedError, and the errors of :func:`until`.
    """
    progress = _Progress(job)

    def ended(client: OperatorClient) -> str | None:
        summary = client.job(job)
        what = _ended(summary)
        if what is None:
            progress.show(summary)
        return what

    return until(place, job, ended)


def _ended(job: JobSummary) -> str | None:
    match job.status:
        case JobStatus.FINISHED:
            return f"Job {job.job} has stopped; everything decided is settled."
        case JobStatus.CANCELLED | JobStatus.FORGOTTEN:
            return f"Job {job.job} was {job.status.value} meanwhile; everything decided is settled."
        case JobStatus.HALTED:
            raise HaltedError(
                f"Job {job.job} has not stopped, it is halted: {job.status_detail}. Nothing was guessed or dropped; a "
                f"person must decide. See onceward transactions {job.job} and onceward resolve --help."
            )
        case _ if job.ending is None:
            return f"Job {job.job} has stopped and was started again since: generation {job.generation} runs."
        case _:
            return None


class _Progress:
    """Prints progress on standard error, in few lines."""

    def __init__(self, job: JobName) -> None:
        self._job = job
        self._begun = time.monotonic()
        self._shown = ("", float("-inf"))

    def show(self, job: JobSummary) -> None:
        waits = [f"waits for {wait.what}" for wait in job.waits] or ["waits for its driver to leave"]
        text = f"job {self._job} is {job.status.value}: {'; '.join(filter(None, (job.orphan, *waits)))}"
        now, (last, at) = time.monotonic(), self._shown
        if now - at >= (_REMINDER_S if text == last else _NEWS_S):
            say(f"{text} ({now - self._begun:.0f} s)")
            self._shown = (text, now)
