"""The options that a coordinator was given, as people may see them: without secrets."""

import re
from collections.abc import Mapping

from onceward.wire.rows import Setting

__all__ = ["settings_of", "without_secrets"]

_HIDDEN = "***"
_IN_FRONT_OF_A_HOST = re.compile(r"(://[^:@/]*):.*@", re.DOTALL)
"""To the last @: a password may hold one. Hides more rather than less."""
_AS_A_PARAMETER = re.compile(
    r"([\w.-]*(?:password|passphrase|passwd|pwd|secret|token)[\w.-]*)(\s*=\s*)[^&;\s]+", re.IGNORECASE
)


def settings_of(given: Mapping[str, object]) -> tuple[Setting, ...]:
    """Return the options by their names as parameters. None and empty text are not given."""
    return tuple(Setting(name=name.replace("_", "-"), value=_shown(value)) for name, value in given.items())


def without_secrets(text: str) -> str:
    """Hide what could be a password in a URL. The coordinator refuses one there, if it recognizes it."""
    return _AS_A_PARAMETER.sub(rf"\1\2{_HIDDEN}", _IN_FRONT_OF_A_HOST.sub(rf"\1:{_HIDDEN}@", text))


def _shown(value: object) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "on" if value else "off"
        case _:
            return without_secrets(str(value))
