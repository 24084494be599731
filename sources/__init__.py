"""Public sources; loaded when first used, because executors import this package without what the driver needs."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sources.kafka.source import KafkaSource

__all__ = ["KafkaSource"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("sources.kafka.source"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
