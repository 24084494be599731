"""Free text on its way to the wire. It may quote a record or an exception, and so hold anything."""

from onceward.wire.limits import MAX_TEXT

__all__ = ["text_to_wire"]


def text_to_wire(text: str) -> str:
    """Cut text to what is accepted. Escapes NUL, which PostgreSQL cannot store, and what UTF-8 cannot represent."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")[:MAX_TEXT]
