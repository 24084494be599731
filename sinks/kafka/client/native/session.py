"""What a worker process keeps from one transaction to the next: connections, metadata and coordinators."""

import logging
import time
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from onceward.connections.per_process import PerProcess
from onceward.connections.sockets.brokers import Brokers
from onceward.connections.sockets.coordinators import Coordinators
from onceward.connections.sockets.settings import ConnectionSettings

__all__ = ["Session"]

_OF_ONE_PRODUCER: Final = frozenset({"transactional.id", "transaction.timeout.ms", "batch.size", "message.max.bytes"})
_KEPT_S: Final = 10.0
"""A session that was idle for longer is closed when another one is taken: after failures there are more than the tasks
need."""

_Key: TypeAlias = tuple[tuple[str, str], ...]


class Session:
    """Connections to the brokers of a cluster. One producer at a time has it."""

    def __init__(self, config: Mapping[str, Any], logger: logging.Logger) -> None:
        self.trouble = ""
        """What last went wrong with a connection."""
        self.idle_since = 0.0
        """Monotonic."""
        self.brokers = Brokers(ConnectionSettings.of(config), logger=logger, trouble=self._note)
        self.coordinators = Coordinators(self.brokers)
        self._key = _key(config)

    @classmethod
    def take(cls, config: Mapping[str, Any], logger: logging.Logger) -> "Session":
        """Return an idle session of this process with the same settings, else a new one."""
        idle = _idle.mine().setdefault(_key(config), [])
        try:
            taken = idle.pop()
        except IndexError:
            taken = cls(config, logger)
        _taken.mine()[id(taken)] = taken
        while idle and idle[0].idle_since < time.monotonic() - _KEPT_S:
            idle.pop(0).brokers.close()
        return taken

    def give_back(self) -> None:
        """Keep the session for the next producer: no answer is awaited."""
        if self._is_mine():
            self.idle_since = time.monotonic()
            _idle.mine().setdefault(self._key, []).append(self)

    def close(self) -> None:
        if self._is_mine():
            self.brokers.close()

    def _is_mine(self) -> bool:
        """Release the session. Return whether it was of this process: a forked child leaves its parent's alone."""
        return _taken.mine().pop(id(self), None) is not None

    def serve(self, timeout: float) -> None:
        """Send what coordinators are asked, and wait until something happens. Raises GarbledError, UnspokenError."""
        self.coordinators.send()
        self.brokers.serve(min(timeout, self.coordinators.until_due()))

    def _note(self, why: str) -> None:
        self.trouble = why


_idle: PerProcess[_Key, list[Session]] = PerProcess()
_taken: PerProcess[int, Session] = PerProcess()
"""By identity. A session must not become garbage together with its producer: the collector closes the sockets of
garbage before the producer gives them back."""


def _key(config: Mapping[str, Any]) -> _Key:
    return tuple(sorted((key, str(value)) for key, value in config.items() if key not in _OF_ONE_PRODUCER))
