"""Whether traces can be exported. Imports nothing of OpenTelemetry."""

from importlib.util import find_spec

from onceward.common.errors import ConfigurationError

__all__ = ["wanted"]


def wanted(traces: bool) -> bool:
    """Return ``traces``. Raises ConfigurationError if they are wanted and ``onceward[otel]`` is missing."""
    if traces and (find_spec("opentelemetry") is None or find_spec("opentelemetry.sdk") is None):
        raise ConfigurationError(
            "Traces need a package that is not installed (opentelemetry-sdk). Nothing was started. Install it with: "
            "pip install 'onceward[otel]'"
        )
    return traces
