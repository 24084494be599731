"""A document's body: JSON that every reader interprets in the same way."""

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

from onceward.protocol.encoded import EncodedBody, body_to_text
from onceward.protocol.values import Document, JsonObject
from onceward.wire.limits import MAX_CONTAINERS, MAX_DEPTH, MAX_VALUES, MAX_VERSION
from onceward.wire.malformed import MalformedError, as_kind
from onceward.wire.v1 import participants_pb2 as pb

__all__ = ["body_from_text", "document_from_wire", "document_to_wire", "encoded", "require_few_values"]


def document_to_wire(document: Document) -> pb.Document:
    return pb.Document(kind=document.kind, version=document.version, body=body_to_text(document.body))


def require_few_values(bodies: Iterable[str]) -> None:
    """Raise MalformedError for more values than are decoded for one request. Counts what separates values, without
    decoding; such characters inside of texts count, too."""
    values = containers = 0
    for body in bodies:
        inside = body.count("[") + body.count("{")
        containers += inside
        values += inside + body.count(",") + 1
    if values > MAX_VALUES or containers > MAX_CONTAINERS:
        raise MalformedError(
            f"documents: about {values} JSON values with {containers} objects and lists, at most {MAX_VALUES} with "
            f"{MAX_CONTAINERS} are taken"
        )


def document_from_wire(message: pb.Document, *, keep_text: bool = False) -> Document:
    """Decode a document. Raises MalformedError.

    :param keep_text: check the body, and keep its text.
    """
    kind = as_kind(message.kind)
    if not 1 <= message.version <= MAX_VERSION:
        raise MalformedError(f"version: {message.version} of a {kind} document; versions begin at 1")
    body = body_from_text(message.body)
    return Document(kind=kind, version=message.version, body=encoded(message.body, body) if keep_text else body)


def encoded(text: str, body: JsonObject, shared: str = "") -> EncodedBody:
    """What is kept of ``text``, which is decoded as ``body``: the store takes ASCII only."""
    return EncodedBody(text if text.isascii() else body_to_text(body), shared)


def body_from_text(text: str) -> JsonObject:
    """Decode a body. Raises MalformedError for anything but one finite, unambiguous, not too deep JSON object."""
    try:
        body = _DECODER.decode(text)
    except RecursionError:
        raise _too_deep() from None
    except MalformedError:
        raise
    except ValueError as error:
        raise MalformedError(f"body: not JSON: {error}") from None
    if not isinstance(body, dict):
        raise MalformedError("body: a document is a JSON object")
    if text.count("{") + text.count("[") > MAX_DEPTH:  # fewer brackets cannot be nested deeper
        _check_depth(body)
    return body


def _no_constant(name: str) -> NoReturn:
    raise MalformedError(f"body: {name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise MalformedError(f"body: {text[:40]} is beyond what a double can hold")
    return number


def _unambiguous(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise MalformedError("body: an object has the same key twice")
    return members


def _check_depth(body: Any) -> None:
    level = [body]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, Mapping) else outer)
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return
    raise _too_deep()


def _too_deep() -> MalformedError:
    return MalformedError(f"body: more than {MAX_DEPTH} levels deep")


# Created once: a sink of ten thousand slots has ten thousand documents.
_DECODER = json.JSONDecoder(parse_constant=_no_constant, parse_float=_finite, object_pairs_hook=_unambiguous)
