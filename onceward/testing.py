"""For tests of jobs, and of sources and sinks of one's own. Part of ``onceward[dev]``.

The fixtures of ``pytest_plugins = ["onceward.testing"]`` are for jobs. ``check_sink`` and ``check_source`` check what
every sink and every source promises.
"""

try:
    from onceward.dev.promises.checking import BrokenPromiseError, Promise
    from onceward.dev.promises.sink_case import SinkCase
    from onceward.dev.promises.sinks import SINK_PROMISES, check_sink
    from onceward.dev.promises.source_case import SourceCase
    from onceward.dev.promises.sources import SOURCE_PROMISES, check_source
    from onceward.dev.testing import LocalTopics, Record, local_kafka, local_topics, spark_session
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"onceward.testing is part of onceward[dev], which is not installed completely ({error.name} is missing). "
        "Install it with: pip install 'onceward[dev]'",
        name=error.name,
    ) from error

__all__ = [
    "SINK_PROMISES",
    "SOURCE_PROMISES",
    "BrokenPromiseError",
    "LocalTopics",
    "Promise",
    "Record",
    "SinkCase",
    "SourceCase",
    "check_sink",
    "check_source",
    "local_kafka",
    "local_topics",
    "spark_session",
]
