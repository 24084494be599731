"""Exactly-once checkpoints for PySpark pipelines.

The names below are the public interface; they are loaded when first used, because executors import this package for
its small pure modules and have neither gRPC nor a store.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coordinator.pipeline.interfaces import Committer, Sink, Source
    from coordinator.pipeline.pipeline import Pipeline
    from coordinator.pipeline.restarts import NO_RESTART, Restart
    from coordinator.protocol.settings import CheckpointSettings

__all__ = ["NO_RESTART", "CheckpointSettings", "Committer", "Pipeline", "Restart", "Sink", "Source"]

_HOMES = {
    "NO_RESTART": "coordinator.pipeline.restarts",
    "CheckpointSettings": "coordinator.protocol.settings",
    "Committer": "coordinator.pipeline.interfaces",
    "Pipeline": "coordinator.pipeline.pipeline",
    "Restart": "coordinator.pipeline.restarts",
    "Sink": "coordinator.pipeline.interfaces",
    "Source": "coordinator.pipeline.interfaces",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
