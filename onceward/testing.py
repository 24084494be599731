"""Fixtures of pytest for the tests of jobs: ``pytest_plugins = ["onceward.testing"]``. Part of ``onceward[dev]``."""

try:
    from onceward.dev.testing import LocalTopics, Record, local_kafka, local_topics, spark_session
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        f"onceward.testing is part of onceward[dev], which is not installed completely ({error.name} is missing). "
        "Install it with: pip install 'onceward[dev]'",
        name=error.name,
    ) from error

__all__ = ["LocalTopics", "Record", "local_kafka", "local_topics", "spark_session"]
