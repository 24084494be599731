"""Kafka's record batches from and to Arrow columns, without a Python object per record.

    decode.py   Decoder: the records that one partition has in an answer of Fetch -> Arrow columns
    encode.py   Encoder: Arrow columns -> record batches for Produce
    errors.py   the errors, as a tree
    library.py  the compiled library

Importing this fails with ``ImportError`` where the library was not built (README.md says how).
"""

from onceward_native.compression import LEVELS, Compression, compressions
from onceward_native.decode import Chunk, Column, Decoder, columns_schema
from onceward_native.encode import Batch, Encoder
from onceward_native.errors import (
    CodecError,
    DamagedBatchError,
    HeaderNameNotUtf8Error,
    OldFormatError,
    RecordTooLargeError,
    TooLargeError,
    UnfitRecordError,
    UnsupportedCompressionError,
    WrongPartitionError,
)

__all__ = [
    "LEVELS",
    "Batch",
    "Chunk",
    "CodecError",
    "Column",
    "Compression",
    "DamagedBatchError",
    "Decoder",
    "Encoder",
    "HeaderNameNotUtf8Error",
    "OldFormatError",
    "RecordTooLargeError",
    "TooLargeError",
    "UnfitRecordError",
    "UnsupportedCompressionError",
    "WrongPartitionError",
    "columns_schema",
    "compressions",
]
