"""What a Python worker process keeps from one slot to the next. Runs on executors: standard library only."""

import os
from typing import Generic, TypeVar

__all__ = ["PerProcess"]

_Key = TypeVar("_Key")
_Kept = TypeVar("_Kept")


class PerProcess(Generic[_Key, _Kept]):
    """Objects of this process by key. A forked child starts with none; it must not touch its parent's objects."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._mine: dict[_Key, _Kept] = {}
        self._inherited: list[object] = []

    def mine(self) -> dict[_Key, _Kept]:
        """Return the objects of the calling process; callers may read and change the mapping."""
        if self._owner != os.getpid():
            # The parent's clients have no threads in this process. Releasing them would wait for those threads forever.
            self._inherited.append(self._mine)
            self._mine, self._owner = {}, os.getpid()
        return self._mine
