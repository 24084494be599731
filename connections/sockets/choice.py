"""Whether a client of our own can be used, and one line in the log where librdkafka is."""

import logging
from functools import cache

__all__ = ["missing", "say_librdkafka"]


@cache
def missing() -> str | None:
    """Return why a native client cannot be used at all."""
    try:
        import onceward_native  # noqa: F401
    except (ImportError, AttributeError) as error:  # AttributeError: the library is older than its Python part
        return f"onceward-native is not installed, or does not load here ({error})"
    return None


@cache
def say_librdkafka(done: str, why: str, logger: logging.Logger) -> None:
    """Log once that librdkafka is used. ``done``: what it does with records."""
    logger.warning(
        "Records are %s by librdkafka, which takes several times the CPU: %s. The records are the same.", done, why
    )
