"""Secrets by reference: ``env:NAME`` and ``file:/absolute/path``, read where they are used and never shown.

Runs on executors too: standard library only.
"""

import os
import re
from pathlib import Path
from typing import NoReturn

from onceward.common.errors import ConfigurationError

__all__ = ["Secret", "is_reference", "reference_problem", "resolve"]

_ENVIRONMENT = "env:"
_FILE = "file:"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_MAX_SECRET_BYTES = 64 * 1024
_EVERY_PROCESS = "the driver, for every executor and for the coordinator, wherever this cluster is used"


class Secret(str):
    """A resolved secret: text to a Kafka client, stars in a log line, and not picklable.

    Containers, dataclasses and debuggers show ``repr``, and so do clients that print their configuration. ``str()``
    gives the value, because the clients read it that way.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a resolved secret is not pickled: send the reference (env:NAME or file:PATH) and resolve it there"
        )

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        self.__reduce__()


def is_reference(text: str) -> bool:
    return text.startswith((_ENVIRONMENT, _FILE))


def reference_problem(text: str) -> str | None:
    """Say what is wrong with the form of a reference, without resolving it; None if it is fine."""
    if text.startswith(_ENVIRONMENT):
        if _VARIABLE.fullmatch(text.removeprefix(_ENVIRONMENT)):
            return None
        return "env: must be followed by the name of an environment variable"
    if text.startswith(_FILE):
        if Path(text.removeprefix(_FILE)).is_absolute():
            return None
        return "file: must be followed by an absolute path, because executors have another working directory"
    return "is not a reference"


def resolve(text: str, *, key: str, readers: str = _EVERY_PROCESS) -> Secret:
    """Return the value behind the reference ``text``, which was given for the setting ``key``. ``readers`` says for
    messages which processes need it.

    Drops one trailing line break of a file. Raises ConfigurationError that names the variable or the file, never the
    value.
    """
    if text.startswith(_ENVIRONMENT):
        variable = text.removeprefix(_ENVIRONMENT)
        value = os.environ.get(variable, "")
        if not value:
            raise ConfigurationError(
                f"{key} refers to the environment variable {variable}, unset or empty in process {os.getpid()}. "
                f"Nothing was read or written with it. Set {variable} for {readers}."
            )
        return Secret(value)
    path = Path(text.removeprefix(_FILE))
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_SECRET_BYTES + 1)
        if len(raw) > _MAX_SECRET_BYTES:
            raise _unusable_file(key, path, f"it is larger than {_MAX_SECRET_BYTES} bytes", readers)
        value = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise _unusable_file(key, path, "it is not UTF-8 text", readers) from None
    except OSError as error:
        raise _unusable_file(key, path, error.strerror or "it cannot be read", readers) from None
    value = value.removesuffix("\n").removesuffix("\r")
    if not value:
        raise _unusable_file(key, path, "it is empty", readers)
    return Secret(value)


def _unusable_file(key: str, path: Path, why: str, readers: str) -> ConfigurationError:
    return ConfigurationError(
        f"{key} refers to the file {path}, but {why}. Nothing was read or written with it. Put the value there, "
        f"readable for {readers}."
    )
