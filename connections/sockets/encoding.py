"""The types of Kafka's protocol, to and from bytes.

Flexible versions of a request (KIP-482) write lengths as varints, one more than the length, and end each structure with
tagged fields. Older versions write lengths with 16 or 32 bits and have no tagged fields.
"""

import struct
from collections.abc import Callable, Iterator

__all__ = ["Decoder", "Encoder", "GarbledError"]


class GarbledError(Exception):
    """Bytes of a broker that are not what the protocol says: nothing behind them on the connection can be used."""


class Encoder:
    """Appends fields to ``data``."""

    def __init__(self, *, flexible: bool) -> None:
        self.flexible = flexible
        self.data = bytearray()

    def put(self, form: str, *values: int) -> None:
        """Append numbers of fixed size; ``form``: as of `struct`, without the byte order."""
        self.data += struct.pack(f">{form}", *values)

    def raw(self, content: bytes) -> None:
        self.data += content

    def uvarint(self, number: int) -> None:
        while number > 0x7F:
            self.data.append(number & 0x7F | 0x80)
            number >>= 7
        self.data.append(number)

    def array(self, length: int) -> None:
        """Begin an array, or bytes."""
        if self.flexible:
            self.uvarint(length + 1)
        else:
            self.put("i", length)

    def text(self, text: str) -> None:
        content = text.encode()
        if self.flexible:
            self.uvarint(len(content) + 1)
        else:
            self.put("h", len(content))
        self.data += content

    def bytes_(self, content: bytes) -> None:
        self.array(len(content))
        self.data += content

    def no_tags(self) -> None:
        """End a structure."""
        if self.flexible:
            self.data.append(0)


class Decoder:
    """Takes fields from ``view``, in order. Raises GarbledError where they are not complete."""

    def __init__(self, view: memoryview, *, flexible: bool) -> None:
        self.view, self.flexible, self.at = view, flexible, 0

    def take(self, form: str) -> tuple[int, ...]:
        """Take numbers of fixed size; ``form``: as of `struct`, without the byte order."""
        form = f">{form}"
        return struct.unpack_from(form, self.view, self._advanced(struct.calcsize(form)))

    def number(self, form: str) -> int:
        return self.take(form)[0]

    def skip(self, size: int) -> int:
        """Pass ``size`` bytes; return where they begin."""
        return self._advanced(size)

    def raw(self, size: int) -> bytes:
        at = self._advanced(size)
        return bytes(self.view[at : at + size])

    def uvarint(self) -> int:
        number = 0
        for shift in range(0, 35, 7):
            byte = self.view[self._advanced(1)]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise GarbledError("a length has more than five bytes")

    def size(self, form: str) -> int:
        """Take the length of an array, bytes or text; -1 for null. ``form``: its form in versions without varints."""
        length = self.uvarint() - 1 if self.flexible else self.number(form)
        if length < -1:
            raise GarbledError(f"a length is {length}")
        return length

    def array(self) -> Iterator[int]:
        """Take the length of an array; iterate over the numbers of its elements."""
        length = self.size("i")
        if length > len(self.view) - self.at:  # each element has a byte at least
            raise GarbledError(f"an array of {length} elements does not fit into {len(self.view) - self.at} bytes")
        return iter(range(max(0, length)))

    def text(self) -> str | None:
        length = self.size("h")
        return None if length < 0 else self.raw(length).decode(errors="replace")

    def bytes_(self) -> bytes | None:
        length = self.size("i")
        return None if length < 0 else self.raw(length)

    def tags(self, known: Callable[[int, "Decoder"], None] | None = None) -> None:
        """End a structure. ``known``: gets the number and content of each tagged field."""
        if not self.flexible:
            return
        for _ in range(self.uvarint()):
            tag, size = self.uvarint(), self.uvarint()
            at = self._advanced(size)
            if known is not None:
                known(tag, Decoder(self.view[at : at + size], flexible=True))

    def _advanced(self, size: int) -> int:
        at = self.at
        if size < 0 or at + size > len(self.view):
            raise GarbledError(f"{size} bytes were announced, and {len(self.view) - at} are left")
        self.at = at + size
        return at
