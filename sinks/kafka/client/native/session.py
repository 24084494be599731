"""What a worker process keeps from one transaction to the next: connections, metadata and coordinators."""

import logging
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from onceward.connections.per_process import PerProcess
from onceward.connections.sockets.brokers import Brokers
from onceward.connections.sockets.coordinators import Coordinators
from onceward.connections.sockets.settings import ConnectionSettings

__all__ = ["Session"]

_OF_ONE_PRODUCER: Final = frozenset({"transactional.id", "transaction.timeout.ms", "batch.size", "message.max.bytes"})
_MOST_IDLE: Final = 4
"""Sessions with the same settings: a task may write to several topics at a time."""

_Key: TypeAlias = tuple[tuple[str, str], ...]


class Session:
    """Connections to the brokers of a cluster. One producer at a time has it."""

    def __init__(self, config: Mapping[str, Any], logger: logging.Logger) -> None:
        self.trouble = ""
        """What last went wrong with a connection."""
        self.brokers = Brokers(ConnectionSettings.of(config), logger=logger, trouble=self._note)
        self.coordinators = Coordinators(self.brokers)
        self._key = _key(config)

    @classmethod
    def take(cls, config: Mapping[str, Any], logger: logging.Logger) -> "Session":
        """Return an idle session of this process with the same settings, else a new one."""
        try:
            taken = _idle.mine()[_key(config)].pop()
        except (KeyError, IndexError):
            taken = cls(config, logger)
        _taken.mine()[id(taken)] = taken
        return taken

    def give_back(self) -> None:
        """Keep the session for the next producer: no answer is awaited."""
        del _taken.mine()[id(self)]
        idle = _idle.mine().setdefault(self._key, [])
        if len(idle) < _MOST_IDLE:
            idle.append(self)
        else:
            self.brokers.close()

    def close(self) -> None:
        del _taken.mine()[id(self)]
        self.brokers.close()

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
