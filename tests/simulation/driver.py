"""The driver's process: the real `Pipeline` with its generations, client and sink, on a simulated network."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from onceward.client.calls import Caller
from onceward.client.session import CoordinatorClient
from onceward.connectors.interfaces import Sink, SinkSession
from onceward.driver.journal import Journal
from onceward.driver.members import Members
from onceward.driver.opening import OpenJob
from onceward.driver.output import Output
from onceward.driver.pipeline import Pipeline
from onceward.driver.progress import Progress
from onceward.driver.spark.tasks import Tasks
from onceward.driver.staying.tasks import StayingTasks, require_followed
from onceward.protocol.events import CloseReason
from onceward.sinks.kafka.control.clock import Clock
from tests.simulation.executors import WorkerTasks
from tests.simulation.threads import VirtualRuntime, scheduler

__all__ = ["SimulatedPipeline", "Surroundings", "TracingJournal"]


Trace = Callable[[str, dict[str, Any]], None]


class TracingJournal(Journal):
    """Writes the journal to the transcript."""

    def __init__(self, job: str, trace: Trace) -> None:
        super().__init__(job)
        self._trace = trace

    def log(self, event: str, **facts: Any) -> None:
        self._trace(event, facts)


class SilentProgress(Progress):
    """Draws and logs nothing."""

    def show(self) -> None:
        pass

    def _say(self, text: str) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """The environment of a driver's process."""

    channel: Any
    patience: float
    """Seconds for which an unreachable coordinator is retried."""
    tasks: WorkerTasks
    trace: Trace
    """Receives the journal: event and facts."""


class SimulatedPipeline(Pipeline):
    """A `Pipeline` with its coordinator behind a simulated network and its tasks on simulated executors."""

    def __init__(self, surroundings: Surroundings, *, sinks: Sequence[Sink], **arguments: Any) -> None:
        outputs: dict[str, Output] = {sink.participant.name: Output(sink) for sink in sinks}
        super().__init__(coordinator="coordinator:7878", outputs=outputs, **arguments)
        self._surroundings = surroundings

    def _launch(self) -> None:
        """Do nothing: there is no Spark."""

    def _connect(self, stack: contextlib.ExitStack, opened: OpenJob) -> CoordinatorClient:
        around = self._surroundings
        caller = Caller(
            around.channel, "coordinator:7878", patience_s=around.patience, broken=lambda: None, links=opened.links
        )
        return CoordinatorClient(caller)

    def _tasks(self, stack: contextlib.ExitStack, opened: OpenJob) -> Tasks:
        return self._surroundings.tasks

    def _staying(self, tasks: Tasks, sinks: Sequence[SinkSession]) -> StayingTasks:
        return StayingTasks(
            job=self._job,
            source=require_followed(self._source),
            sinks=sinks,
            settings=self._settings,
            staying_job=lambda: self._surroundings.tasks,
            runtime=VirtualRuntime(),
        )

    def _generations(self, members: Members, client: CoordinatorClient) -> CloseReason:
        members = replace(
            members,
            runtime=VirtualRuntime(),
            journal=TracingJournal(self._job, self._surroundings.trace),
            progress=SilentProgress(self._job, clock=lambda: 0.0),
        )
        return super()._generations(members, client)


def virtual_clock(now: Callable[[], Any]) -> Clock:
    """The sink's clock; ``now`` is the process's wall clock."""
    return Clock(now=now, monotonic=lambda: scheduler().now, wait=lambda seconds: scheduler().sleep(seconds))
