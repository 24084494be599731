"""Shared members: what documents of one kind have in common is sent and stored once.

The committables of a shuffle all name every input range. Stored separately they would take slots x ranges.
"""

from collections.abc import Sequence
from typing import Any

from onceward.protocol.values import JsonObject

__all__ = ["MAX_SHARED", "merged", "split"]

MAX_SHARED = 64
"""Limit on shared members: after a merge each body holds a reference to each of them."""


def split(bodies: Sequence[JsonObject]) -> tuple[JsonObject, list[JsonObject]]:
    """Return (members that are the same in all of ``bodies``, the remaining members of each body).

    Lists and objects count as the same only if they are one object in memory: comparing their content could cost as
    much as sending it. `merged` returns bodies that share these objects.
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
    """Rebuild a whole body. Raises ValueError when both have a member, or too many are shared."""
    if not shared:
        return own
    if len(shared) > MAX_SHARED:
        raise ValueError(f"{len(shared)} members are shared, at most {MAX_SHARED} may be")
    if twice := sorted(shared.keys() & own.keys()):
        raise ValueError(f"{twice[0]!r} is shared and in one of the documents that share it")
    return {**shared, **own}


def _same(one: Any, other: Any) -> bool:
    # In Python 1 == True == 1.0; in JSON they differ.
    return one is other or (type(one) is type(other) and isinstance(one, (str, int)) and one == other)
