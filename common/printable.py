"""Make text from outside safe to show: a reason may contain text from a record, a broker, a driver or a person. A
terminal obeys control characters, and a log's reader believes what looks like a line or a field."""

import logging
import re
from collections.abc import Mapping

__all__ = ["LogFields", "escape_logs", "log_fields", "logger", "printable"]

_KEPT = "\n\t"
_FORMATTER = logging.Formatter()
_PLAIN = re.compile(r"[^\s\"'\\=]+")
_MARGIN = "\n    "
"""Before the second line of what is logged: nothing that is quoted in it can look like a line of its own."""


def printable(text: str) -> str:
    r"""Return ``text`` with all but visible characters, spaces, newlines and tabs escaped, for example ``\x1b``."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() or one in _KEPT else _escaped(one) for one in text)


class LogFields(str):
    """The text of some fields, with their values, for formatters that do not show the text."""

    __slots__ = ("values",)

    values: Mapping[str, object]


def log_fields(values: Mapping[str, object]) -> LogFields:
    """Return ``name=value name="another value"`` on one line. A value that could end its field is quoted and escaped,
    so no text can add a field."""
    text = LogFields(" ".join(f"{name}={_field(str(value))}" for name, value in values.items()))
    text.values = values
    return text


def logger(name: str) -> logging.Logger:
    """Return the standard library's logger of that name. Everything logged there is printable, tracebacks included,
    and every line but the first is indented."""
    made = logging.getLogger(name)
    if _escape not in made.filters:
        made.addFilter(_escape)
    return made


def escape_logs() -> None:
    """Make everything that this process logs printable, other libraries' lines too. Call it after configuring
    logging."""
    for handler in logging.getLogger().handlers:
        if _escape not in handler.filters:
            handler.addFilter(_escape)


def _field(text: str) -> str:
    if text.isprintable() and _PLAIN.fullmatch(text):
        return text
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(one if one.isprintable() else _escaped(one) for one in quoted) + '"'


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def _escape(record: logging.LogRecord) -> bool:
    """Escape a log record; this filter drops nothing. A second one on the way changes nothing."""
    said = record.getMessage()
    if (shown := _indented(said)) != said:
        record.msg, record.args = shown, ()
    if record.exc_info and not record.exc_text:
        record.exc_text = _indented(_FORMATTER.formatException(record.exc_info))
    return True


def _indented(text: str) -> str:
    return re.sub(r"\n(?!    )", _MARGIN, printable(text))
