"""A body that stays text is the same body to everybody who looks at it."""

import json
from typing import Any

import pytest

from onceward.protocol import encoded
from onceward.protocol.encoded import EncodedBody, body_to_text, decoded, decoded_all, split
from onceward.protocol.values import Committable, Document

BODY: dict[str, Any] = {"id": "a", "ranges": [1, 2], "epoch": 7}
TEXT = json.dumps(BODY, separators=(",", ":"))
KEPT = EncodedBody('{"id":"a"}', '{"ranges":[1,2],"epoch":7}')


def one(slot: int, body: Any) -> Committable:
    return Committable(slot=slot, document=Document(kind="test", version=1, body=body))


@pytest.mark.parametrize("body", [EncodedBody(TEXT), EncodedBody(json.dumps(BODY, indent=1)), KEPT])
def test_text_is_equal_to_what_it_says(body: EncodedBody) -> None:
    assert body == BODY
    assert body == BODY
    assert body == EncodedBody(TEXT)
    assert body["ranges"] == [1, 2]
    assert sorted(body) == sorted(BODY)
    assert len(body) == 3
    assert {**body} == BODY
    assert eval(repr(body)) == BODY


@pytest.mark.parametrize("other", [{**BODY, "epoch": 8}, EncodedBody('{"id":"a"}'), TEXT, None])
def test_text_is_not_equal_to_anything_else(other: object) -> None:
    assert EncodedBody(TEXT) != other


def test_a_decoded_document_is_like_any_other() -> None:
    assert type(decoded(one(1, KEPT).document).body) is dict
    assert decoded_all([one(1, KEPT), one(2, BODY)]) == (one(1, BODY), one(2, BODY))
    assert json.loads(body_to_text(KEPT)) == BODY
    assert body_to_text(EncodedBody(TEXT)) == TEXT


def test_what_is_shared_is_decoded_once() -> None:
    first, second = decoded_all([one(1, KEPT), one(2, EncodedBody('{"id":"b"}', KEPT.shared))])
    assert first.document.body["ranges"] is second.document.body["ranges"]


def test_text_passes_on_without_being_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoded, "_whole", None)
    other = EncodedBody('{"id":"b"}', KEPT.shared)
    assert split([KEPT, other]) == (KEPT.shared, [KEPT.own, other.own])
    assert split([EncodedBody(TEXT)]) == ("", [TEXT])
    assert body_to_text(EncodedBody(TEXT)) == TEXT
    assert EncodedBody(KEPT.own, KEPT.shared) == KEPT


def test_bodies_that_share_different_members_keep_all_of_them() -> None:
    replayed = EncodedBody('{"id":"b","ranges":[3],"epoch":7}')
    shared, own = split([KEPT, replayed])
    assert [json.loads(shared) | json.loads(text) for text in own] == [dict(KEPT), dict(replayed)]
    assert split([]) == ("", [])
