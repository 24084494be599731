"""What is encoded is decoded, in both encodings; bytes that are no answer are refused and never read past."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onceward.connections.sockets.encoding import Decoder, Encoder, GarbledError


@pytest.mark.parametrize("flexible", [True, False])
@given(text=st.text(max_size=300), content=st.binary(max_size=300), number=st.integers(-(2**63), 2**63 - 1))
def test_fields_come_back_as_they_were(flexible: bool, text: str, content: bytes, number: int) -> None:
    out = Encoder(flexible=flexible)
    out.text(text)
    out.bytes_(content)
    out.array(3)
    out.raw(b"abc")
    out.put("q", number)
    out.no_tags()
    back = Decoder(memoryview(out.data), flexible=flexible)
    assert (back.text(), back.bytes_()) == (text, content)
    assert [back.raw(1) for _ in back.array()] == [b"a", b"b", b"c"]
    assert back.number("q") == number
    back.tags()
    assert back.at == len(out.data)


@pytest.mark.parametrize("flexible", [True, False])
@given(
    data=st.binary(max_size=40), fields=st.lists(st.sampled_from(["q", "text", "bytes", "array", "tags"]), max_size=6)
)
def test_damaged_bytes_are_refused_or_read_within_their_limits(flexible: bool, data: bytes, fields: list[str]) -> None:
    back = Decoder(memoryview(data), flexible=flexible)
    try:
        for field in fields:
            match field:
                case "q":
                    back.number("q")
                case "text":
                    back.text()
                case "bytes":
                    back.bytes_()
                case "array":
                    assert len(list(back.array())) <= len(data)
                case _:
                    back.tags()
    except GarbledError:
        pass
    assert back.at <= len(data)


def test_a_field_that_is_cut_and_a_length_below_null_are_refused() -> None:
    with pytest.raises(GarbledError, match="8 bytes were announced, and 7 are left"):
        Decoder(memoryview(bytes(7)), flexible=True).number("q")
    with pytest.raises(GarbledError, match="a length is -2"):
        Decoder(memoryview(b"\xff\xfe"), flexible=False).text()
    with pytest.raises(GarbledError, match="more than five bytes"):
        Decoder(memoryview(b"\xff" * 9), flexible=True).uvarint()


def test_tagged_fields_are_shown_and_passed() -> None:
    seen: list[tuple[int, bytes]] = []
    back = Decoder(memoryview(b"\x02\x00\x02ab\x05\x01cX"), flexible=True)
    back.tags(lambda tag, content: seen.append((tag, bytes(content.view))))
    assert seen == [(0, b"ab"), (5, b"c")]
    assert back.raw(1) == b"X"
