"""A transform on batches that cannot be used: found by a task, recognised by the driver in Spark's text.

Spark hands the driver an executor's exception as text, with stack traces of both languages around it, so the message
travels as a marked piece of JSON. Runs on executors too: standard library only.
"""

import json
import re

from onceward.coordinator.errors import ConfigurationError

__all__ = ["unusable", "unusable_in"]

_MARK = "onceward-unusable"
_MARKED = re.compile(rf"<{_MARK} (\"[^<>]*\")>")


def unusable(error: ConfigurationError) -> ConfigurationError:
    """What a task raises for ``error``: it ends the job, because no later checkpoint could do better."""
    text = str(error)
    told = json.dumps(text).replace("<", "\\u003c").replace(">", "\\u003e")
    return ConfigurationError(f"{text} <{_MARK} {told}>")


def unusable_in(text: str) -> ConfigurationError | None:
    """The error in what Spark raised, however much is wrapped around it."""
    match = _MARKED.search(text)
    return ConfigurationError(str(json.loads(match[1]))) if match else None
