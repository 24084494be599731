"""The names of the codecs, and whether the machine has their libraries."""

from collections.abc import Mapping
from typing import Literal, get_args

from onceward_native.library import lib

__all__ = ["COMPRESSIONS", "Compression", "compressions"]

Compression = Literal["none", "gzip", "snappy", "lz4", "zstd"]
COMPRESSIONS: tuple[Compression, ...] = get_args(Compression)
"""By their number in a batch."""
LEVELS: Mapping[Compression, range] = {"gzip": range(10), "lz4": range(13), "zstd": range(1, 23)}
"""Those of the codecs that have levels."""


def compressions() -> tuple[Compression, ...]:
    """Return what can be read and written here: ``none``, ``snappy``, and the codecs whose library is found."""
    return tuple(name for number, name in enumerate(COMPRESSIONS) if lib.has_codec(number))
