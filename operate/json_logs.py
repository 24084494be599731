"""The formats of the log: text for people, or one JSON object per line for programs."""

import json
import logging
from datetime import UTC, datetime
from typing import Any

from onceward.common.errors import ConfigurationError
from onceward.common.printable import LogFields, printable

__all__ = ["JsonFormatter", "log_formatter"]


class JsonFormatter(logging.Formatter):
    """``time``, ``level``, ``logger``, ``event``, ``job``, ``fields``, ``detail``. The last four may be null or empty:
    only lines about something that happens to a job have an event, a job and fields; ``detail`` is the text of all
    others, and a traceback. Control characters are escaped in the values, too: a reader may show them."""

    def format(self, record: logging.LogRecord) -> str:
        said = record.args[0] if isinstance(record.args, tuple) and len(record.args) == 1 else None
        fields = dict(said.values) if isinstance(said, LogFields) else {}
        detail = fields.pop("detail", None) if fields else record.getMessage()
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": fields.pop("event", None),
            "job": fields.pop("job", None),
            "fields": fields,
            "detail": "\n".join(str(text) for text in (detail, record.exc_text) if text) or None,
        }
        return json.dumps(_shown(line))


def log_formatter(name: str) -> logging.Formatter:
    """The formatter called ``text`` or ``json``. Raises ConfigurationError for another name."""
    match name:
        case "text":
            return logging.Formatter("%(asctime)s %(levelname)-7s %(name)s %(message)s")
        case "json":
            return JsonFormatter()
        case _:
            raise ConfigurationError(f"{name!r} is no log format. Nothing was started. Use text or json.")


def _shown(value: Any) -> Any:
    """``value`` as JSON, its texts printable."""
    match value:
        case None | bool() | int() | float():
            return value
        case dict():
            return {printable(str(name)): _shown(inner) for name, inner in value.items()}
        case list() | tuple():
            return [_shown(inner) for inner in value]
        case _:
            return printable(str(value))
