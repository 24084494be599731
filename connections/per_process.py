"""What a Python worker process keeps from one slot to the next. Executors only; imports the standard library only."""

import os
from typing import Generic, TypeVar

__all__ = ["PerProcess"]

_Key = TypeVar("_Key")
_Kept = TypeVar("_Kept")


class PerProcess(Generic[_Key, _Kept]):
    """Things of this process by key. A fork begins with none; it must not touch what its parent had."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._mine: dict[_Key, _Kept] = {}
        self._inherited: list[object] = []

    def mine(self) -> dict[_Key, _Kept]:
        """Those of the process that asks, to read and to change."""
        if self._owner != os.getpid():
            # The parent's clients have no threads here. Releasing them would wait for those threads for ever.
            self._inherited.append(self._mine)
            self._mine, self._owner = {}, os.getpid()
        return self._mine
