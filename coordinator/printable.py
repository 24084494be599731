"""Make text from outside safe to print: a reason may contain text from a record, a broker or a person, and a terminal
obeys control characters."""

import logging

__all__ = ["escape_logs", "logger", "printable"]

_KEPT = "\n\t"
_FORMATTER = logging.Formatter()


def printable(text: str) -> str:
    r"""Return ``text`` with all but visible characters, spaces, newlines and tabs escaped, for example ``\x1b``."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in _KEPT else one.encode("unicode_escape").decode("ascii") for one in text
    )


def logger(name: str) -> logging.Logger:
    """Return the standard library's logger of that name. Everything logged there is printable, tracebacks included."""
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


def _escape(record: logging.LogRecord) -> bool:
    """Escape a log record; this filter drops nothing."""
    said = record.getMessage()
    if (shown := printable(said)) != said:
        record.msg, record.args = shown, ()
    if record.exc_info and not record.exc_text:
        record.exc_text = printable(_FORMATTER.formatException(record.exc_info))
    return True
