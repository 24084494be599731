"""Text from elsewhere, made safe to print: a reason may carry what a record, a broker or a person put there, and a
terminal obeys control characters."""

import logging

__all__ = ["escape_logs", "logger", "printable"]

_KEPT = "\n\t"
_FORMATTER = logging.Formatter()


def printable(text: str) -> str:
    r"""``text`` with everything that is no visible character, space, newline or tab escaped, for example ``\x1b``."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one in _KEPT else one.encode("unicode_escape").decode("ascii") for one in text
    )


def logger(name: str) -> logging.Logger:
    """The standard library's logger of that name. What is logged there is printable, traceback included."""
    made = logging.getLogger(name)
    if _escape not in made.filters:
        made.addFilter(_escape)
    return made


def escape_logs() -> None:
    """The same for everything that this process logs, also by other libraries: for programs that configured logging."""
    for handler in logging.getLogger().handlers:
        if _escape not in handler.filters:
            handler.addFilter(_escape)


def _escape(record: logging.LogRecord) -> bool:
    """A filter that drops nothing."""
    said = record.getMessage()
    if (shown := printable(said)) != said:
        record.msg, record.args = shown, ()
    if record.exc_info and not record.exc_text:
        record.exc_text = printable(_FORMATTER.formatException(record.exc_info))
    return True
