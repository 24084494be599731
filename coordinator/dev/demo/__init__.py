"""``onceward demo``: real records pass through Spark exactly once while its processes are killed."""

from onceward.coordinator.dev.demo.errors import DemoError
from onceward.coordinator.dev.demo.run import run_demo

__all__ = ["DemoError", "run_demo"]
