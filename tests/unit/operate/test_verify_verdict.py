"""How a verdict is shown to people and programs, and how it names records."""

import hashlib

import pytest

from onceward.operate.verify.history import Content, digest, shown
from onceward.operate.verify.verdict import Grade, Property, Result, Verification

LOST = Result(property=Property.NOTHING_LOST, grade=Grade.FAIL, evidence=("1 record", "in-0 offset 7"))
ORDER = Result(property=Property.ORDER, grade=Grade.PASS)
VERDICT = Verification(results={each.property: each for each in (LOST, ORDER)})


def test_the_grade_comes_first_and_each_property_has_a_line() -> None:
    assert VERDICT.text().splitlines() == [
        "FAIL",
        "  FAIL    nothing lost; 1 record; in-0 offset 7",
        "  PASS    order kept",
    ]


def test_programs_get_the_same_as_json() -> None:
    assert VERDICT.to_json() == {
        "verdict": "FAIL",
        "properties": {
            "nothing lost": {"verdict": "FAIL", "evidence": ["1 record", "in-0 offset 7"]},
            "order kept": {"verdict": "PASS", "evidence": []},
        },
    }


@pytest.mark.parametrize(
    ("part", "known_as"),
    [
        (None, None),
        (b"", "="),
        (b"order-7", "=order-7"),
        (b"x" * 48, "=" + "x" * 48),
        *(
            (each, "#" + hashlib.blake2b(each, digest_size=16).hexdigest())
            for each in (b"x" * 49, b"a\nb", "ö".encode())
        ),
    ],
)
def test_short_text_names_a_record_by_itself_and_all_else_by_a_digest(part: bytes | None, known_as: str | None) -> None:
    assert digest(part) == known_as


def test_a_record_is_shown_without_the_mark_and_null_as_null() -> None:
    assert str(Content("out", None, "=order-7")) == "null order-7"
    assert shown("#00ff") == "#00ff"
