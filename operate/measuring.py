"""The metrics and traces of ``onceward serve``."""

import contextlib
import gc
from dataclasses import dataclass

from onceward.coordinator.service.observer import Observer
from onceward.coordinator.service.tls import ServerTls
from onceward.watch.metrics.endpoint import Endpoint, require_installed
from onceward.watch.traces.installed import wanted

__all__ = ["Measured", "measure", "trace"]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What observes the coordinator and where it is shown; None without metrics."""

    observer: Observer | None = None
    url: str | None = None

    def announcement(self, *, rights: bool) -> str:
        """The line that says where the metrics are. ``rights``: the coordinator distinguishes peers, and metrics do
        not."""
        return f"metrics are at {self.url}" + (" and show all jobs, whatever --rights says" if rights else "")


def measure(stack: contextlib.ExitStack, listen: str | None, tls: ServerTls | None, *, anywhere: bool) -> Measured:
    """Serve metrics until ``stack`` closes, with the coordinator's own TLS. Raises ConfigurationError.

    :param anywhere: the user allows an address that other machines can reach, though clients are not authenticated.
    """
    if listen is None:
        return Measured()
    require_installed()
    from onceward.watch.metrics.coordinator import CoordinatorMetrics
    from onceward.watch.metrics.registry import Registry

    metrics = CoordinatorMetrics(certificates={} if tls is None else tls.certificates)
    registry = Registry()
    registry.register(metrics)
    endpoint = Endpoint(
        listen,
        registry,
        anywhere=anywhere or (tls is not None and tls.authenticates),
        tls=None if tls is None else tls.context,
    )
    stack.callback(endpoint.close)
    # A scrape of many jobs makes Python look for garbage. Without this, it would look at all modules each time and hold
    # the interpreter for tens of milliseconds.
    gc.freeze()
    return Measured(observer=metrics, url=endpoint.url)


def trace(stack: contextlib.ExitStack, traces: bool) -> Observer | None:
    """Return what exports traces until ``stack`` closes; None if they are not wanted. Raises ConfigurationError."""
    if not wanted(traces):
        return None
    from onceward.watch.traces.coordinator import CoordinatorTraces
    from onceward.watch.traces.spans import Spans

    spans = Spans("onceward-coordinator")
    stack.callback(spans.close)
    return CoordinatorTraces(spans)
