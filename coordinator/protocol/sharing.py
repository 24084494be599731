"""Documents of one kind mostly say the same: what they share is sent and stored once.

The committables of a shuffle all name every input range. Apart they would take slots x ranges.
"""

from collections.abc import Sequence
from typing import Any

from onceward.coordinator.protocol.values import JsonObject

__all__ = ["MAX_SHARED", "merged", "split"]

MAX_SHARED = 64
"""Members that bodies may share: each body gets a reference to each of them when they are merged."""


def split(bodies: Sequence[JsonObject]) -> tuple[JsonObject, list[JsonObject]]:
    """(members that are the same in all of ``bodies``, what each body has besides).

    Lists and objects count as the same only where they are one object in memory: comparing their content could cost as
    much as sending it. What `merged` returns shares them again.
    """
    if len(bodies) < 2:
        return {}, list(bodies)
    first, *others = bodies
    shared = dict(first)
    for body in others:
        shared = {key: value for key, value in shared.items() if key in body and _same(value, body[key])}
    shared = dict(list(shared.items())[:MAX_SHARED])
    if not shared:
        return {}, list(bodies)
    return shared, [{key: value for key, value in body.items() if key not in shared} for body in bodies]


def merged(shared: JsonObject, own: JsonObject) -> JsonObject:
    """A whole body again. Raises ValueError when both have a member, or too many are shared."""
    if not shared:
        return own
    if len(shared) > MAX_SHARED:
        raise ValueError(f"{len(shared)} members are shared, at most {MAX_SHARED} may be")
    if twice := sorted(shared.keys() & own.keys()):
        raise ValueError(f"{twice[0]!r} is shared and in one of the documents that share it")
    return {**shared, **own}


def _same(one: Any, other: Any) -> bool:
    # 1 == True == 1.0 in Python, not in JSON.
    return one is other or (type(one) is type(other) and isinstance(one, (str, int)) and one == other)
