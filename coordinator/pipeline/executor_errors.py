"""Carry a ConfigurationError about a transform on batches from an executor to the driver.

Spark hands the driver an executor's exception as text, inside stack traces of Python and the JVM. The message therefore
travels as a marked piece of JSON. Runs on executors too: standard library only.
"""

import json
import re

from onceward.coordinator.errors import ConfigurationError

__all__ = ["unusable", "unusable_in"]

_MARK = "onceward-unusable"
_MARKED = re.compile(rf"<{_MARK} (\"[^<>]*\")>")


def unusable(error: ConfigurationError) -> ConfigurationError:
    """Return the exception that a task raises for ``error``. It ends the job: no later checkpoint could succeed."""
    text = str(error)
    told = json.dumps(text).replace("<", "\\u003c").replace(">", "\\u003e")
    return ConfigurationError(f"{text} <{_MARK} {told}>")


def unusable_in(text: str) -> ConfigurationError | None:
    """Extract the marked error from the text of a Spark exception; None when there is none."""
    match = _MARKED.search(text)
    return ConfigurationError(str(json.loads(match[1]))) if match else None
