"""Open what a job needs on its driver: its participants, and the connection to its coordinator."""

import contextlib
import threading

from onceward.client.access import CoordinatorAccess
from onceward.client.calls import addresses_of
from onceward.client.session import CoordinatorClient, connect
from onceward.common.errors import ConfigurationError
from onceward.common.links import Links
from onceward.connectors.interfaces import JobContext, Sink, Source
from onceward.coordinator.service.listen import Listen
from onceward.coordinator.service.observer import Observer
from onceward.driver.progress import Progress, follow_time
from onceward.protocol.settings import CheckpointSettings, as_duration
from onceward.protocol.values import JobName
from onceward.watch.web.page import Page

__all__ = ["connect_to", "open_page", "open_participants", "require_job"]


def require_job(job: str, coordinator: str | None) -> JobName:
    """Return the job's name. Raises ConfigurationError if it, or the coordinator's address, cannot be used."""
    try:
        name = JobName(job)
    except (ValueError, TypeError) as error:
        raise ConfigurationError(f"job: {error}") from None
    if coordinator is not None:
        addresses_of(coordinator)
    return name


def open_page(stack: contextlib.ExitStack, listen: Listen | None, progress: Progress) -> Page | None:
    """Serve the page until ``stack`` closes; the job's first line names it. Raises ConfigurationError."""
    if listen is None:
        return None
    page = Page(listen)
    stack.callback(page.close)
    progress.place += f", page {page.url}"
    return page


def open_participants(
    stack: contextlib.ExitStack,
    job: JobName,
    source: Source,
    sink: Sink,
    settings: CheckpointSettings,
    access: CoordinatorAccess,
) -> tuple[Links, Progress]:
    """Open source and sink; ``stack`` closes them."""
    links = Links()
    progress = Progress(job, links=links, place=_place(access))
    stack.callback(progress.close)
    closed = threading.Event()
    stack.callback(closed.set)
    threading.Thread(target=follow_time, args=(progress, closed.wait), name="onceward-progress", daemon=True).start()
    context = JobContext(
        job=job,
        checkpoint_timeout=as_duration(settings.timeout),
        checkpoint_interval=None if settings.interval is None else as_duration(settings.interval),
        links=links,
    )
    for participant in (source, sink):
        stack.callback(participant.close)
        participant.open(context)
    return links, progress


def _place(access: CoordinatorAccess) -> str:
    if access.address is not None:
        return f"coordinator {access.address}"
    from onceward.coordinator.service.state_dir import state_directory

    return f"coordinator in this process, store in {state_directory(access.state_dir)}"


def connect_to(
    stack: contextlib.ExitStack,
    access: CoordinatorAccess,
    links: Links,
    *,
    shared: bool = False,
    observer: Observer | None = None,
    page: Page | None = None,
) -> CoordinatorClient:
    """Connect to the coordinator, or start one in this process; ``stack`` closes it.

    ``shared``: other jobs of this process may use the one in this process, too; each job must be there only once.
    ``observer``: of the one in this process. ``page``: shows that one.
    """
    if access.address is None:
        from onceward.coordinator.service.embedded import EmbeddedCoordinator, shared_coordinator

        if shared:
            embedded = stack.enter_context(shared_coordinator(access.state_dir, observer=observer))
        else:
            embedded = EmbeddedCoordinator(access.state_dir, observer=observer)
            stack.callback(embedded.close)
        if page is not None:
            page.attach(embedded.address, embedded.address)
        client = connect(embedded.address, broken=lambda: embedded.failed, links=links, channel=embedded.channel())
    else:
        full = access.completed()
        client = connect(access.address, links=links, tls=full.tls, token=full.token)
    stack.callback(client.close)
    return client
