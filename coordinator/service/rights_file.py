"""The rights file: read at the start, and again when it changes."""

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path

from onceward.common.errors import ConfigurationError
from onceward.common.printable import log_fields, logger
from onceward.coordinator.service.rights import InvalidRightsError, Rights, parse_rights

__all__ = ["RightsFile"]

_log = logger("onceward.rights")

_LOOK_S = 1.0
"""How long a change may go unnoticed."""
_MAX_BYTES = 1024 * 1024


class RightsFile:
    """Raises ConfigurationError if the file cannot be used at the start. Later, one that cannot be used changes nothing
    and is logged as an error.

    :param certificates: clients show certificates, so the file may name some.
    """

    def __init__(self, path: Path, *, certificates: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._certificates = certificates
        self._clock = clock
        self._looked = clock()
        self._seen = self._version()
        try:
            self._rights = self._read()
        except InvalidRightsError as error:
            problems = "\n".join(f"  - {problem}" for problem in error.problems)
            raise ConfigurationError(
                f"The rights file {path} cannot be used. Nothing was started. Change these:\n{problems}"
            ) from None

    def rights(self) -> Rights:
        """The rights in force."""
        now = self._clock()
        if now - self._looked >= _LOOK_S:
            self._looked = now
            if (version := self._version()) != self._seen:
                self._seen = version
                self._renew()
        return self._rights

    def _renew(self) -> None:
        try:
            self._rights = self._read()
        except InvalidRightsError as error:
            detail = f"the old rights stay in force: {error}"
            _log.error("%s", log_fields({"event": "rights_not_read", "file": self._path, "detail": detail}))
        else:
            said = {"event": "rights_renewed", "file": self._path, "peers": len(self._rights)}
            _log.info("%s", log_fields(said))

    def _read(self) -> Rights:
        try:
            with self._path.open("rb") as file:
                state = os.fstat(file.fileno())
                content = file.read(_MAX_BYTES + 1)
            text = content.decode("utf-8")
        except UnicodeDecodeError:
            raise InvalidRightsError(["it is not UTF-8 text"]) from None
        except OSError as error:
            raise InvalidRightsError([error.strerror or "it cannot be read"]) from None
        if state.st_uid not in (0, os.geteuid()) or state.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise InvalidRightsError(
                [f"other users may write it, and so give themselves rights. Run: chmod go-w {self._path}, as its owner"]
            )
        if len(content) > _MAX_BYTES:
            raise InvalidRightsError([f"it is larger than {_MAX_BYTES} bytes"])
        rights = parse_rights(text)
        if rights.names_certificates and not self._certificates:
            raise InvalidRightsError(["it names certificates, and no client shows one: pass --client-ca, too"])
        return rights

    def _version(self) -> object:
        try:
            state = self._path.stat()
        except OSError:
            return None
        return state.st_dev, state.st_ino, state.st_mtime_ns, state.st_size
