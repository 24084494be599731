"""Reads Avro files: what a test needs to read an Iceberg table without the library that the sink uses.

https://avro.apache.org/docs/1.11.1/specification/
"""

import io
import json
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

__all__ = ["read_avro"]

_MAGIC = b"Obj\x01"
_FILE_METADATA = {"type": "map", "values": "bytes"}


def read_avro(file: Path) -> Iterator[Any]:
    """Yield the records of a file. Raises ValueError for what it does not know."""
    with file.open("rb") as data:
        if data.read(len(_MAGIC)) != _MAGIC:
            raise ValueError(f"{file} is no Avro file")
        metadata = _value(data, _FILE_METADATA, {})
        schema, codec = json.loads(metadata["avro.schema"]), metadata.get("avro.codec", b"null")
        if codec not in (b"null", b"deflate"):
            raise ValueError(f"{file}: codec {codec!r}")
        marker = data.read(16)
        while data.peek(1):
            count, block = _long(data), data.read(_long(data))
            if data.read(16) != marker:
                raise ValueError(f"{file}: a block ends early")
            records = io.BytesIO(zlib.decompress(block, -zlib.MAX_WBITS) if codec == b"deflate" else block)
            named: dict[str, Any] = {}
            yield from (_value(records, schema, named) for _ in range(count))


def _value(data: BinaryIO, schema: Any, named: dict[str, Any]) -> Any:
    """``named``: schemas that were given a name before."""
    if isinstance(schema, list):
        return _value(data, schema[_long(data)], named)
    if isinstance(schema, str):
        return _value(data, named[schema], named) if schema in named else _primitive(data, schema)
    match schema["type"]:
        case "record":
            named[schema["name"]] = schema
            return {field["name"]: _value(data, field["type"], named) for field in schema["fields"]}
        case "fixed":
            named[schema["name"]] = schema
            return data.read(schema["size"])
        case "array":
            return [_value(data, schema["items"], named) for _ in _blocks(data)]
        case "map":
            return {_primitive(data, "string"): _value(data, schema["values"], named) for _ in _blocks(data)}
        case kind:
            return _value(data, kind, named)


def _blocks(data: BinaryIO) -> Iterator[None]:
    """One for each item of an array or a map."""
    while count := _long(data):
        if count < 0:
            _long(data)  # bytes of the block
        yield from (None for _ in range(abs(count)))


def _primitive(data: BinaryIO, kind: str) -> Any:
    match kind:
        case "null":
            return None
        case "boolean":
            return data.read(1) == b"\x01"
        case "int" | "long":
            return _long(data)
        case "float":
            return struct.unpack("<f", data.read(4))[0]
        case "double":
            return struct.unpack("<d", data.read(8))[0]
        case "bytes":
            return data.read(_long(data))
        case "string":
            return data.read(_long(data)).decode()
    raise ValueError(f"type {kind}")


def _long(data: BinaryIO) -> int:
    """A number of variable length, zigzag."""
    found, shift = 0, 0
    while True:
        (byte,) = data.read(1)
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (found >> 1) ^ -(found & 1)
        shift += 7
