"""Arrow batches as the text of COPY, without Python code per row but for arrays. Runs on executors."""

import base64
import datetime
import decimal
import json as json_module
import math
from array import array
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from onceward.sinks.postgres.errors import StagingError, UnfitTextError

__all__ = ["copy_text"]

_TEXT = pa.large_string()
_ESCAPED = (("\\", "\\\\"), ("\n", "\\n"), ("\r", "\\r"), ("\t", "\\t"))
"""What text must not hold unchanged, the backslash first."""


def _scalar(text: str) -> pa.Scalar:
    """The same as ``pa.scalar``, which loads pandas."""
    content = text.encode()
    offsets = array("q", [0, len(content)])
    return pa.Array.from_buffers(_TEXT, 1, [None, pa.py_buffer(offsets), pa.py_buffer(content)])[0]


_TAB, _NOTHING, _LINE, _HEX = map(_scalar, ("\t", "", "\n", "\\\\x"))


def copy_text(
    batch: pa.RecordBatch, columns: Sequence[str], first: int, *, json: Collection[str] = (), numbered: bool = False
) -> memoryview:
    """Return ``columns`` of ``batch`` as a line for each record. ``first``: the number of its first record in the slot.
    ``json``: those whose nested values become JSON. ``numbered``: each line ends with its record's number.

    Raises StagingError for text that PostgreSQL has no form for, and for a type that cannot be written.
    """
    texts = [
        _json_text(batch.column(name), name, first) if name in json else _text(batch.column(name), name, first)
        for name in columns
    ]
    if numbered:
        numbers = array("q", range(first, first + batch.num_rows))
        texts.append(pa.Array.from_buffers(pa.int64(), batch.num_rows, [None, pa.py_buffer(numbers)]).cast(_TEXT))
    joined = pc.binary_join_element_wise(*texts, _TAB, null_handling="replace", null_replacement="\\N")
    lines = pc.binary_join_element_wise(joined, _NOTHING, _LINE)
    return _bytes(lines)


def _text(column: pa.Array, name: str, first: int) -> pa.Array:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _text(column.dictionary_decode(), name, first)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _escaped(column.cast(_TEXT), name, first)
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _hexadecimal(column.cast(pa.large_binary()))
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return column.cast(pa.timestamp(kind.unit, "UTC")).cast(_TEXT)
    if (
        pa.types.is_boolean(kind)
        or pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_decimal(kind)
        or pa.types.is_date(kind)
        or pa.types.is_timestamp(kind)
    ):
        return column.cast(_TEXT)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        literals = [None if value is None else _array(value) for value in column.to_pylist()]
        return _escaped(pa.array(literals, _TEXT), name, first)
    raise StagingError(
        f"Column {name} is of Arrow type {kind}, for which its column in PostgreSQL has no form. Cast it in the "
        "transform. No row of the checkpoint becomes visible"
    )


def _json_text(column: pa.Array, name: str, first: int) -> pa.Array:
    if not pa.types.is_nested(column.type):
        return _text(column, name, first)
    values = (_json(value, column.type) for value in column.to_pylist())
    texts = [None if value == "null" else value for value in values]
    return _escaped(pa.array(texts, _TEXT), name, first)


def _json(value: Any, kind: pa.DataType) -> str:
    if value is None:
        return "null"
    if pa.types.is_struct(kind):
        return _object((field.name, _json(value[field.name], field.type)) for field in kind)
    if pa.types.is_map(kind):
        return _object((_key(key), _json(one, kind.item_type)) for key, one in value)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return "[" + ",".join(_json(one, kind.value_type) for one in value) + "]"
    match value:
        case bool() | str() | int():
            return json_module.dumps(value, ensure_ascii=False)
        case float() if math.isfinite(value):
            return repr(value)
        case decimal.Decimal():
            return format(value, "f")
        case _:
            return json_module.dumps(_key(value))


def _object(pairs: Iterable[tuple[str, str]]) -> str:
    return "{" + ",".join(f"{json_module.dumps(key, ensure_ascii=False)}:{value}" for key, value in pairs) + "}"


def _key(value: Any) -> str:
    """As Spark writes it in JSON."""
    match value:
        case bytes():
            return base64.b64encode(value).decode("ascii")
        case datetime.datetime() if value.tzinfo is not None:
            return value.astimezone(datetime.UTC).isoformat()
        case datetime.date():
            return value.isoformat()
        case bool():
            return "true" if value else "false"
        case _:
            return str(value)


def _escaped(column: pa.Array, name: str, first: int) -> pa.Array:
    content = bytes(_bytes(column))
    if b"\0" in content:
        rows = pc.indices_nonzero(pc.match_substring(column, "\0")).to_pylist()
        raise UnfitTextError(
            rows,
            f"Record {first + rows[0]} of the slot has a character U+0000 in column {name}, which no text of "
            f"PostgreSQL can hold (SQLSTATE 22021). Remove it in the transform, for example with "
            f"translate({name}, '\\0', ''). No row of the checkpoint becomes visible",
        )
    for plain, escaped in _ESCAPED:
        if plain.encode() in content:
            column = pc.replace_substring(column, plain, escaped)
    return column


def _hexadecimal(column: pa.Array) -> pa.Array:
    r"""``\x`` and two digits for each byte, its backslash escaped."""
    start, offsets = _offsets(column)
    digits = _bytes(column).hex().encode("ascii")
    doubled = array("q", [2 * (offset - start) for offset in offsets])
    texts = pa.Array.from_buffers(_TEXT, len(column), [None, pa.py_buffer(doubled), pa.py_buffer(digits)])
    prefixed = pc.binary_join_element_wise(_HEX, texts, _NOTHING)
    return pc.if_else(column.is_valid(), prefixed, pa.nulls(1, _TEXT)[0])


def _offsets(column: pa.Array) -> tuple[int, Sequence[int]]:
    """The offsets of a large binary or text array, and the first of them."""
    buffer = column.buffers()[1]
    if buffer is None or not len(column):
        return 0, [0] * (len(column) + 1)
    offsets = memoryview(buffer).cast("B")[column.offset * 8 : (column.offset + len(column) + 1) * 8].cast("q")
    return offsets[0], offsets


def _bytes(column: pa.Array) -> memoryview:
    """All bytes of a large binary or text array, one value after the other."""
    _, offsets = _offsets(column)
    content = column.buffers()[2]
    return memoryview(content)[offsets[0] : offsets[-1]] if content is not None else memoryview(b"")


def _array(values: Sequence[Any]) -> str:
    return "{" + ",".join(map(_element, values)) + "}"


def _element(value: Any) -> str:
    match value:
        case None:
            return "NULL"
        case bool():
            return "true" if value else "false"
        case float() if math.isinf(value):
            return "Infinity" if value > 0 else "-Infinity"
        case int() | float() | decimal.Decimal():
            return str(value)
        case bytes():
            return f'"\\\\x{value.hex()}"'
        case datetime.datetime():
            return f'"{value.isoformat(sep=" ")}"'
        case datetime.date():
            return value.isoformat()
        case _:
            return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'
