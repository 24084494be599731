"""A collector of OpenTelemetry in this process: it takes the requests of OTLP over gRPC and keeps their spans."""

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as service
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span as WireSpan

from tests.support.waiting import wait_until

__all__ = ["Collector", "Trace", "TracedSpan", "collecting"]

ERROR = 2
"""The code of a span's status that says so."""


@dataclass(frozen=True, kw_only=True)
class TracedSpan:
    """A span as the collector got it. Ids are hexadecimal; times are seconds since the epoch."""

    service: str
    trace: str
    id: str
    parent: str
    """Empty for a root."""
    name: str
    began: float
    ended: float
    error: str | None
    """The description of an error; None for a span that has none."""
    attributes: Mapping[str, Any]


class Trace:
    """The spans of one trace."""

    def __init__(self, spans: Sequence[TracedSpan]) -> None:
        self.spans = spans

    @property
    def names(self) -> list[str]:
        return sorted(span.name for span in self.spans)

    def all(self, name: str) -> list[TracedSpan]:
        return [span for span in self.spans if span.name == name]

    def one(self, name: str, service: str | None = None) -> TracedSpan:
        """The only span of this name, and service."""
        (found,) = (span for span in self.all(name) if service in (None, span.service))
        return found

    def below(self, span: TracedSpan) -> list[str]:
        """The names of the children of ``span``."""
        return sorted(one.name for one in self.spans if one.parent == span.id)


class Collector(service.TraceServiceServicer):
    """Serves on ``address`` within :func:`collecting`."""

    address = ""

    def __init__(self) -> None:
        self._spans: list[TracedSpan] = []
        self.requests: list[bytes] = []
        """As they came, with everything that is not kept of their spans."""
        self.asked = threading.Event()
        """Set by the first request."""
        self.metadata: Mapping[str, str] = {}
        """Of the last request."""
        self.answers: Callable[[], None] = lambda: None
        """Called before a request is answered."""

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the service's name
        self.metadata = {name: str(value) for name, value in context.invocation_metadata()}
        self.requests.append(request.SerializeToString())
        self.asked.set()
        self.answers()
        for resource in request.resource_spans:
            name = _attributes(resource.resource.attributes)["service.name"]
            self._spans += (_span(name, span) for scope in resource.scope_spans for span in scope.spans)
        return otlp.ExportTraceServiceResponse()

    @property
    def variables(self) -> dict[str, str]:
        """What makes a process export to this collector, soon."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{self.address}", "OTEL_BSP_SCHEDULE_DELAY": "50"}

    def trace(self, trace: str) -> Trace:
        """What was taken of one trace until now."""
        return Trace([span for span in self._spans if span.trace == trace])

    def complete(self, trace: str, *names: str) -> Trace:
        """A trace, once it has a root and spans of these names."""
        wait_until(
            lambda: {"checkpoint", *names} <= set(self.trace(trace).names),
            f"the collector has {names} of trace {trace}",
        )
        return self.trace(trace)

    def all(self) -> Trace:
        return Trace(list(self._spans))


@contextlib.contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a free port."""
    collector = Collector()
    with ThreadPoolExecutor(4) as pool:
        server = grpc.server(pool)
        service.add_TraceServiceServicer_to_server(collector, server)  # type: ignore[no-untyped-call]
        collector.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        try:
            yield collector
        finally:
            server.stop(None).wait(10)


def _span(service: str, span: WireSpan) -> TracedSpan:
    return TracedSpan(
        service=service,
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        name=span.name,
        began=span.start_time_unix_nano / 1e9,
        ended=span.end_time_unix_nano / 1e9,
        error=span.status.message if span.status.code == ERROR else None,
        attributes=_attributes(span.attributes),
    )


def _attributes(given: Sequence[KeyValue]) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in given}


def _value(value: AnyValue) -> Any:
    return getattr(value, value.WhichOneof("value") or "string_value")
