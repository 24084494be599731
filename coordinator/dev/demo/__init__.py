"""``onceward demo``: real records go through Spark exactly once while processes are killed under it."""

from onceward.coordinator.dev.demo.errors import DemoError
from onceward.coordinator.dev.demo.run import run_demo

__all__ = ["DemoError", "run_demo"]
