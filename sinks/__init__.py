"""Public sinks; loaded when first used, because executors import this package without what the driver needs."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sinks.kafka.sink import KafkaSink

__all__ = ["KafkaSink"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("sinks.kafka.sink"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
