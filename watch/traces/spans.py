"""Exports spans as the standard variables OTEL_* say, in a thread of the SDK. No checkpoint waits for a collector:
spans that it does not take are dropped."""

import threading
from importlib.metadata import entry_points
from os import environ

from opentelemetry.environment_variables import OTEL_TRACES_EXPORTER
from opentelemetry.sdk.environment_variables import OTEL_EXPORTER_OTLP_PROTOCOL, OTEL_EXPORTER_OTLP_TRACES_PROTOCOL
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import Decision
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NoOpTracer, SpanContext, Status, StatusCode, TraceFlags

from onceward.common.errors import ConfigurationError
from onceward.common.printable import logger, printable
from onceward.watch.traces.ids import TraceIds
from onceward.watch.traces.names import Attributes, SpanName

__all__ = ["Spans"]

_log = logger("onceward.traces")

_CLOSE_S = 5.0
_LONGEST_ERROR = 1000
"""Characters."""
_OTLP = {"grpc": "otlp_proto_grpc", "http/protobuf": "otlp_proto_http"}
_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_FINE = Status(StatusCode.UNSET)
_SCOPE = InstrumentationScope("onceward")


class Spans:
    """Spans of checkpoints, given when they have ended. Thread-safe; never waits, never raises."""

    def __init__(self, service: str) -> None:
        """Raises ConfigurationError when the variables OTEL_* name what cannot be used.

        :param service: the service's name, unless OTEL_SERVICE_NAME or OTEL_RESOURCE_ATTRIBUTES have one.
        """
        resource = Resource.create()
        if str(resource.attributes[SERVICE_NAME]).startswith("unknown_service"):
            resource = resource.merge(Resource({SERVICE_NAME: service}))
        try:
            self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
            disabled = isinstance(self._provider.get_tracer(_SCOPE.name), NoOpTracer)  # OTEL_SDK_DISABLED
            self._exporter = None if disabled else _chosen_exporter()
            if self._exporter is not None:
                self._processor = BatchSpanProcessor(self._exporter)
                self._provider.add_span_processor(self._processor)
        except ValueError as error:
            raise ConfigurationError(
                f"Traces cannot be exported as the variables OTEL_* say: {error}. Nothing was started. Correct them."
            ) from None
        self._new_id = self._provider.id_generator.generate_span_id

    def root(self, ids: TraceIds, began: float, ended: float, attributes: Attributes, error: str | None = None) -> None:
        """Record the span of a whole checkpoint. Times are seconds since the epoch.

        :param error: why it failed; None if it did not.
        """
        self._record(SpanName.CHECKPOINT, began, ended, attributes, error, ids=ids, parent=None, span_id=ids.root)

    def child(
        self,
        ids: TraceIds,
        name: SpanName,
        began: float,
        ended: float,
        attributes: Attributes,
        error: str | None = None,
        *,
        parent: int | None = None,
        span_id: int | None = None,
    ) -> int:
        """Record a span below ``parent``, by default the root; return its id, 0 if it was not recorded.

        :param span_id: of this span, if others have to know it; else random.
        """
        return self._record(name, began, ended, attributes, error, ids=ids, parent=parent or ids.root, span_id=span_id)

    def close(self) -> None:
        """Send what is left, for a few seconds at most."""
        # The SDK's own limit is half a minute.
        closing = threading.Thread(target=self._provider.shutdown, name="onceward-traces", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)
        if closing.is_alive() and self._exporter is not None:
            _log.warning("the last spans were not taken within %.0f s and are dropped", _CLOSE_S)
            self._exporter.shutdown()

    def _sampled(self, ids: TraceIds) -> bool:
        """Whether the sampler takes the root. It decides by the trace's id, so every process decides alike."""
        if self._exporter is None:
            return False
        decision = self._provider.sampler.should_sample(None, ids.trace, SpanName.CHECKPOINT).decision
        return decision is Decision.RECORD_AND_SAMPLE

    def _record(
        self,
        name: SpanName,
        began: float,
        ended: float,
        attributes: Attributes,
        error: str | None,
        *,
        ids: TraceIds,
        parent: int | None,
        span_id: int | None,
    ) -> int:
        try:
            if not self._sampled(ids):
                return 0
            own = SpanContext(ids.trace, span_id or self._new_id(), is_remote=False, trace_flags=_SAMPLED)
            above = None if parent is None else SpanContext(ids.trace, parent, is_remote=True, trace_flags=_SAMPLED)
            # Not by a tracer, which takes three times as long for a span that has ended: the coordinator decides for
            # hundreds of jobs in this thread.
            span = ReadableSpan(
                name,
                context=own,
                parent=above,
                resource=self._provider.resource,
                attributes={str(key): value for key, value in attributes.items()},
                status=_FINE if error is None else Status(StatusCode.ERROR, printable(error)[:_LONGEST_ERROR]),
                start_time=_nanoseconds(began),
                end_time=_nanoseconds(max(began, ended)),
                instrumentation_scope=_SCOPE,
            )
            self._processor.on_end(span)
        except Exception:  # noqa: BLE001 - no span is worth a checkpoint
            _log.warning("a span %s could not be recorded", name, exc_info=True)
            return 0
        return own.span_id


def _chosen_exporter() -> SpanExporter | None:
    """The exporter that OTEL_TRACES_EXPORTER and OTEL_EXPORTER_OTLP_PROTOCOL choose; None for ``none``."""
    name = environ.get(OTEL_TRACES_EXPORTER, "").strip() or "otlp"
    if name == "none":
        return None
    if name == "otlp":
        protocol = environ.get(OTEL_EXPORTER_OTLP_TRACES_PROTOCOL) or environ.get(OTEL_EXPORTER_OTLP_PROTOCOL) or "grpc"
        name = _OTLP.get(protocol.strip(), protocol)
    found = list(entry_points(group="opentelemetry_traces_exporter", name=name))
    if not found:
        raise ConfigurationError(
            f"The variables OTEL_* ask for an exporter of traces that is not installed: {name}. Nothing was started. "
            "Install onceward[otel] for grpc, opentelemetry-exporter-otlp-proto-http for http/protobuf, or correct "
            f"{OTEL_TRACES_EXPORTER} and {OTEL_EXPORTER_OTLP_PROTOCOL}."
        )
    made: SpanExporter = found[0].load()()
    return made


def _nanoseconds(seconds: float) -> int:
    return round(seconds * 1e9)
