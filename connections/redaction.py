"""Keep passwords out of kafka-python's debug log.

Verified in kafka-python 3.0.12: at level DEBUG ``kafka.net.connection`` and ``kafka.protocol.parser`` log every
request, SASL answers included; the parser also logs every byte sent. The library's objects print their content, so only
a filter on the logger can stop it.
"""

import logging

__all__ = ["redact_control_plane_logs"]

_LOGGERS = ("kafka.net.connection", "kafka.protocol.parser")


def _says_no_secret(record: logging.LogRecord) -> bool:
    args = record.args if isinstance(record.args, tuple) else ()
    return not any(isinstance(arg, bytes | bytearray) or type(arg).__name__.startswith("Sasl") for arg in args)


def redact_control_plane_logs() -> None:
    """Drop log records that could show a password. Safe to call again."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        if _says_no_secret not in logger.filters:
            logger.addFilter(_says_no_secret)
