"""What can be wrong with a record batch. Each message says what and where.

CodecError
├── DamagedBatchError             it is not what a producer wrote, or a producer wrote nonsense
├── HeaderNameNotUtf8Error        Arrow and Spark cannot represent the name of a header
├── OldFormatError                format 0 or 1, which brokers before 0.11 wrote
├── UnsupportedCompressionError   the codec is unknown, or its library is not installed
└── TooLargeError                 more bytes than a column can hold
"""

__all__ = [
    "CodecError",
    "DamagedBatchError",
    "HeaderNameNotUtf8Error",
    "OldFormatError",
    "RecordTooLargeError",
    "TooLargeError",
    "UnfitRecordError",
    "UnsupportedCompressionError",
    "error_of_batch",
    "error_of_ending",
    "error_of_row",
]


class CodecError(Exception):
    """Root of this package's errors.

    ``offset``: the batch's first offset as its header says, -1 where none is known. ``position``: where the batch
    begins in the bytes of the answer. ``record``: the record's place in its batch, -1 if the error is about all of it.
    """

    def __init__(self, message: str, *, offset: int = -1, position: int = 0, record: int = -1) -> None:
        super().__init__(message)
        self.offset, self.position, self.record = offset, position, record


class DamagedBatchError(CodecError):
    """The batch is not what a producer wrote, or a producer wrote what the format forbids."""


class HeaderNameNotUtf8Error(CodecError):
    """A header's name is not UTF-8, which Arrow's strings demand. Read without the column ``headers``."""


class OldFormatError(CodecError):
    """The message has format 0 or 1. The topic's ``message.format.version`` was old when it was written."""


class UnsupportedCompressionError(CodecError):
    """The codec is unknown, or its library is not installed."""


class TooLargeError(CodecError):
    """The batch has more bytes than a column may hold."""


class UnfitRecordError(CodecError):
    """A row cannot be written: its partition does not exist, or a header has no name. ``row``: its place in the batch
    of columns. Only a part of the rows was added, so what was built since ``begin`` must not be committed."""

    def __init__(self, message: str, *, row: int) -> None:
        super().__init__(message)
        self.row = row


class WrongPartitionError(UnfitRecordError):
    """The topic does not have the partition that a row names."""


class RecordTooLargeError(UnfitRecordError):
    """A batch with this record alone would be larger than the limit. ``bytes``: how large it would be."""

    def __init__(self, message: str, *, row: int, size: int) -> None:
        super().__init__(message, row=row)
        self.bytes = size


NO_MEMORY = -1
# batch.h has the same list.
_REASONS: dict[int, tuple[type[CodecError], str]] = {
    -2: (OldFormatError, "is in format 0 or 1, which brokers before 0.11 wrote"),
    -3: (DamagedBatchError, "is damaged: its format is none of 0, 1 and 2"),
    -4: (DamagedBatchError, "is damaged: its length is shorter than its header"),
    -5: (DamagedBatchError, "is damaged: its offsets are negative or too large"),
    -6: (DamagedBatchError, "is damaged: its checksum (CRC-32C) is wrong"),
    -7: (UnsupportedCompressionError, "has an unknown compression"),
    -8: (UnsupportedCompressionError, "is compressed, and the library that decompresses it is not installed"),
    -9: (DamagedBatchError, "is damaged: it cannot be decompressed"),
    -10: (TooLargeError, "has more than 1 GiB of records"),
    -11: (DamagedBatchError, "is damaged: it does not have as many records as its header says"),
    -12: (DamagedBatchError, "is damaged: a length in a record is wrong"),
    -13: (
        DamagedBatchError,
        "is damaged: the offset of a record is not between that of the one before and the batch's last",
    ),
    -14: (DamagedBatchError, "is damaged: a length in a record's headers is wrong"),
    -15: (HeaderNameNotUtf8Error, "has a header whose name is not UTF-8, which no column of strings can hold"),
    -16: (DamagedBatchError, "is damaged: it should end a transaction, and does not say how"),
}


def error_of_batch(code: int, offset: int, position: int, record: int) -> Exception:
    """Return the error for a code of the library."""
    if code == NO_MEMORY:
        return MemoryError("There is no memory for the records of a batch; none of them was returned.")
    kind, what = _REASONS[code]
    where = f"The batch at offset {offset} (byte {position} of the answer"
    where += f", record {record}" if record >= 0 else ""
    return kind(f"{where}) {what}. None of its records was returned.", offset=offset, position=position, record=record)


_WRONG_PARTITION, _NAMELESS_HEADER, _RECORD_TOO_LARGE = -17, -18, -19


def error_of_row(code: int, row: int, partition: int, size: int, partitions: int, most: int) -> Exception:
    """Return the error for a code of the library about a row."""
    then = "Only the rows before it were added: abort the transaction."
    if code == _WRONG_PARTITION:
        return WrongPartitionError(
            f"Row {row} names partition {partition}, and the topic has {partitions}. {then}", row=row
        )
    if code == _NAMELESS_HEADER:
        return UnfitRecordError(f"Row {row} has a header without a name. {then}", row=row)
    if code == _RECORD_TOO_LARGE:
        what = f"Row {row} is too large: a batch with it alone has {size} bytes, of at most {most}. {then}"
        return RecordTooLargeError(what, row=row, size=size)
    return MemoryError(f"There is no memory for row {row}. {then}")


def error_of_ending(code: int, compression: str) -> Exception:
    """Return the error for a code of the library about a batch that was to be ended."""
    if code == NO_MEMORY:
        return MemoryError("There is no memory to end a batch: abort the transaction.")
    return CodecError(f"The library for {compression} could not compress a batch: abort the transaction.")
