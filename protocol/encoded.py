"""Bodies that stay text: a coordinator keeps those of every job in memory, and needs few of them as values.

As text a body takes a fifth of the memory, and nothing of the time that its reader would take.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from onceward.protocol import sharing
from onceward.protocol.values import Committable, Document, JsonObject

__all__ = ["EncodedBody", "body_to_text", "decoded", "decoded_all", "decoding", "split", "text_size"]

_ENCODER = json.JSONEncoder(allow_nan=False, separators=(",", ":"))  # once: a sink of ten thousand slots has as many


class EncodedBody(Mapping[str, Any]):
    """A body as its text. Every look at it decodes the whole: to read more than one member, see :func:`decoded`."""

    __slots__ = ("own", "shared")

    def __init__(self, own: str, shared: str = "") -> None:
        """Both are JSON objects that were decoded once without an error, and have no member in common.

        :param shared: the members that other documents have, too, which keep the same text; empty if there are none.
        """
        self.own = own
        self.shared = shared

    def __getitem__(self, key: str) -> Any:
        return _whole(self, {})[key]

    def __iter__(self) -> Iterator[str]:
        return iter(_whole(self, {}))

    def __len__(self) -> int:
        return len(_whole(self, {}))

    def __eq__(self, other: object) -> bool:
        if isinstance(other, EncodedBody) and (self.own, self.shared) == (other.own, other.shared):
            return True
        return isinstance(other, Mapping) and _whole(self, {}) == _plain(other, {})

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(_whole(self, {}))


def decoded(document: Document) -> Document:
    """The document with a body that can be read, and encoded, like any other."""
    return replace(document, body=_plain(document.body, {}))


def decoding(committables: Iterable[Committable]) -> Iterator[Committable]:
    """Like :func:`decoded`, one after the other. What the bodies share is decoded once."""
    known: dict[str, JsonObject] = {}
    for one in committables:
        yield replace(one, document=replace(one.document, body=_plain(one.document.body, known)))


def decoded_all(committables: Iterable[Committable]) -> tuple[Committable, ...]:
    """Like :func:`decoding`, all together."""
    return tuple(decoding(committables))


def body_to_text(body: JsonObject) -> str:
    """Encode a body. Raises ValueError or TypeError for values that JSON cannot represent."""
    if isinstance(body, EncodedBody) and not body.shared:
        return body.own
    return _ENCODER.encode(_plain(body, {}))


def split(bodies: Sequence[JsonObject]) -> tuple[str, list[str]]:
    """Return (the text of the members that all of ``bodies`` share, empty if none; the text of each body's others)."""
    encoded = [body for body in bodies if isinstance(body, EncodedBody)]
    if bodies and len(encoded) == len(bodies) and len({body.shared for body in encoded}) == 1:
        return encoded[0].shared, [body.own for body in encoded]
    known: dict[str, JsonObject] = {}
    shared, own = sharing.split([_plain(body, known) for body in bodies])
    return body_to_text(shared) if shared else "", [body_to_text(body) for body in own]


def text_size(bodies: Sequence[JsonObject]) -> int:
    """The most bytes that :func:`split` makes of them, with 100 for the frame of each. Decodes none."""
    texts = [body if isinstance(body, EncodedBody) else EncodedBody(body_to_text(body)) for body in bodies]
    shared = {body.shared for body in texts}
    alike = len(next(iter(shared))) if len(shared) == 1 else sum(len(body.shared) for body in texts)
    return alike + sum(len(body.own) + 100 for body in texts)


def _plain(body: JsonObject, known: dict[str, JsonObject]) -> JsonObject:
    return _whole(body, known) if isinstance(body, EncodedBody) else body


def _whole(body: EncodedBody, known: dict[str, JsonObject]) -> JsonObject:
    """``known``: what is decoded of the shared members, by their text."""
    own: JsonObject = json.loads(body.own)
    if not body.shared:
        return own
    if body.shared not in known:
        known[body.shared] = json.loads(body.shared)
    return sharing.merged(known[body.shared], own)
