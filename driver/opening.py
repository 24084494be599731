"""What every kind of job shares on its driver: its options, and what is open while it runs."""

import contextlib
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from onceward.client.access import CoordinatorAccess
from onceward.client.session import CoordinatorClient, connect
from onceward.common.errors import ConfigurationError
from onceward.common.links import Links
from onceward.connectors.interfaces import Finding, JobContext, Sink, SinkSession, Source
from onceward.coordinator.service.listen import Listen
from onceward.coordinator.service.observer import observers
from onceward.driver import preflight
from onceward.driver.checkpoint_tasks import CheckpointTasks, Turn
from onceward.driver.exits import StopFlag
from onceward.driver.journal import Journal
from onceward.driver.letters import LetterCount
from onceward.driver.measuring import Measured, measure
from onceward.driver.members import Members
from onceward.driver.options import CheckedOptions, JobOptions
from onceward.driver.outputs import OpenOutput, place_of
from onceward.driver.progress import Progress, follow_time
from onceward.driver.spark.tasks import Tasks
from onceward.driver.tracing import Traced, trace
from onceward.protocol.settings import CheckpointSettings, as_duration
from onceward.protocol.values import JobName, ParticipantName
from onceward.watch.web.page import Page

__all__ = ["Job", "OpenJob"]


@dataclass(frozen=True, kw_only=True)
class OpenJob:
    """A job whose participants are open, and whose metrics, page and traces are served."""

    name: JobName
    source: Source
    sinks: Sequence[SinkSession]
    settings: CheckpointSettings
    access: CoordinatorAccess
    links: Links
    progress: Progress
    journal: Journal
    measured: Measured
    traced: Traced
    page: Page | None

    def connect(self, stack: contextlib.ExitStack, *, shared: bool = False) -> CoordinatorClient:
        """Connect to the coordinator, or start one in this process; ``stack`` closes it.

        ``shared``: other jobs of this process may use the one in this process, too; each job must be there only once.
        """
        access, links = self.access, self.links
        if access.address is None:
            from onceward.coordinator.service.embedded import EmbeddedCoordinator, shared_coordinator

            observer = observers(self.measured.observer, self.traced.observer)
            if shared:
                embedded = stack.enter_context(shared_coordinator(access.state_dir, observer=observer))
            else:
                embedded = EmbeddedCoordinator(access.state_dir, observer=observer)
                stack.callback(embedded.close)
            if self.page is not None:
                self.page.attach(embedded.address, embedded.address)
            client = connect(embedded.address, broken=lambda: embedded.failed, links=links, channel=embedded.channel())
        else:
            full = access.completed()
            client = connect(access.address, links=links, tls=full.tls, token=full.token)
        stack.callback(client.close)
        return client

    def members(
        self,
        stack: contextlib.ExitStack,
        tasks: Tasks,
        checkpoint_tasks: Callable[[Members, Turn], CheckpointTasks],
        letters: LetterCount | None = None,
        branches: Collection[ParticipantName] = (),
    ) -> Members:
        """What the job's generations share; ``stack`` closes its systems. ``branches``: the outputs with a pass of
        their own."""
        outputs = tuple(
            OpenOutput(
                sink=sink,
                system=sink.system(),
                place=place_of(sink.writes()),
                branch=sink.participant.name in branches,
            )
            for sink in self.sinks
        )
        for output in outputs:
            stack.callback(output.system.close)
        return Members(
            job=self.name,
            source=self.source,
            outputs=outputs,
            tasks=tasks,
            checkpoint_tasks=checkpoint_tasks,
            settings=self.settings,
            journal=self.journal,
            progress=self.progress,
            traces=self.traced.traces,
            letters=letters,
        )


class Job:
    """The base of the public entry points. Starts nothing and uses no network before it runs."""

    def __init__(self, job: str, options: JobOptions) -> None:
        """Raises ConfigurationError, and TypeError for the name of an option that there is not."""
        try:
            self._job = JobName(job)
        except (ValueError, TypeError) as error:
            raise ConfigurationError(f"job: {error}") from None
        self._options = CheckedOptions.of(type(self).__name__, options)
        self._opened: OpenJob | None = None
        self._stopping = StopFlag()

    @property
    def metrics_url(self) -> str | None:
        """Where the metrics are served; None without ``metrics`` and while the job does not run."""
        return self._opened.measured.url if self._opened is not None else None

    @property
    def page_url(self) -> str | None:
        """Where the page is served; None without ``web`` and while the job does not run."""
        return self._opened.page.url if self._opened is not None and self._opened.page is not None else None

    def _open_job(
        self,
        stack: contextlib.ExitStack,
        source: Source,
        sinks: Sequence[Sink],
        settings: CheckpointSettings,
        findings: Sequence[Finding],
    ) -> OpenJob:
        """Open the participants, and what shows the job, until ``stack`` closes.

        :param findings: of the preflight, about Spark. Raises PreflightError if anything is unsafe.
        """
        options, links = self._options, Links()
        progress = Progress(self._job, links=links, place=_place(options.access))
        stack.callback(progress.close)
        closed = threading.Event()
        stack.callback(closed.set)
        threading.Thread(
            target=follow_time, args=(progress, closed.wait), name="onceward-progress", daemon=True
        ).start()
        context = JobContext(
            job=self._job,
            checkpoint_timeout=as_duration(settings.timeout),
            checkpoint_interval=None if settings.interval is None else as_duration(settings.interval),
            links=links,
        )
        stack.callback(source.close)
        source.open(context)
        sessions = []
        for sink in sinks:
            sessions.append(session := sink.connect(context))
            stack.callback(session.close)
        preflight.require_safe(self._job, [*preflight.examine(source, sessions), *findings], options.accepted)
        measured = measure(stack, options.metrics, self._job, links, options.access)
        self._opened = OpenJob(
            name=self._job,
            source=source,
            sinks=sessions,
            settings=settings,
            access=options.access,
            links=links,
            progress=progress,
            journal=Journal(self._job, measured.follow),
            measured=measured,
            traced=trace(stack, options.traces, self._job, embedded=options.access.embedded),
            page=_open_page(stack, options.web, progress),
        )
        stack.callback(setattr, self, "_opened", None)
        return self._opened


def _open_page(stack: contextlib.ExitStack, listen: Listen | None, progress: Progress) -> Page | None:
    """Serve the page until ``stack`` closes; the job's first line names it. Raises ConfigurationError."""
    if listen is None:
        return None
    page = Page(listen)
    stack.callback(page.close)
    progress.place += f", page {page.url}"
    return page


def _place(access: CoordinatorAccess) -> str:
    if access.address is not None:
        return f"coordinator {access.address}"
    from onceward.coordinator.service.state_dir import state_directory

    return f"coordinator in this process, store in {state_directory(access.state_dir)}"
