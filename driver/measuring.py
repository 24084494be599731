"""A job's metrics on its driver: they follow its journal and observe its embedded coordinator."""

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onceward.client.access import CoordinatorAccess
from onceward.common.links import Links
from onceward.common.printable import log_fields, logger
from onceward.coordinator.service.observer import Observer
from onceward.watch.metrics.endpoint import Endpoint, MetricsEndpoint

__all__ = ["NOT_MEASURED", "Measured", "measure"]

_log = logger("onceward.pipeline")


@dataclass(frozen=True, kw_only=True)
class Measured:
    """Who is called with what happens; None for each without metrics."""

    follow: Callable[[str, Mapping[str, Any]], None] | None = None
    """Takes the journal's events."""
    observer: Observer | None = None
    """Observes the embedded coordinator, if there is one."""
    url: str | None = None


NOT_MEASURED = Measured()


def measure(
    stack: contextlib.ExitStack, where: MetricsEndpoint | None, job: str, links: Links, access: CoordinatorAccess
) -> Measured:
    """Serve a job's metrics until ``stack`` closes. Raises ConfigurationError if the address cannot be used."""
    if where is None:
        return NOT_MEASURED
    from onceward.watch.metrics.coordinator import CoordinatorMetrics
    from onceward.watch.metrics.driver import DriverMetrics
    from onceward.watch.metrics.registry import Registry

    registry = Registry()
    tls = None if access.embedded else access.completed().tls
    certificate = None if tls is None or tls.certificate is None else Path(tls.certificate)
    driver = DriverMetrics(job, registry, links, certificate=certificate)
    coordinator = None
    if access.embedded:
        coordinator = CoordinatorMetrics()
        registry.register(coordinator)
    endpoint = Endpoint(where.listen, registry, anywhere=where.insecure_listen_anywhere)
    stack.callback(endpoint.close)
    _log.info("%s", log_fields({"event": "metrics", "job": job, "url": endpoint.url}))
    return Measured(follow=driver.event, observer=coordinator, url=endpoint.url)
