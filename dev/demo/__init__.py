"""``onceward demo``: real records pass through Spark exactly once while its processes are killed."""

from onceward.dev.demo.run import run_demo
from onceward.dev.errors import DemoError

__all__ = ["DemoError", "run_demo"]
