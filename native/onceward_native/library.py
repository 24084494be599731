"""The compiled library, through ctypes: its calls release the interpreter's lock, and it works with every Python."""

import ctypes
from ctypes import POINTER, Structure, c_char_p, c_int, c_int64, c_uint32, c_void_p
from pathlib import Path
from typing import Any

__all__ = ["ArrowArray", "Progress", "Report", "lib"]

_FILE = Path(__file__).resolve().parent / "libonceward_native.so"


class Progress(Structure):
    """Progress of decode.c."""

    _fields_ = [
        (name, c_int64) for name in ("next_offset", "bytes_used", "leader_epoch", "offset", "position", "record")
    ]


class Report(Structure):
    """Report of encode.c."""

    _fields_ = [(name, c_int64) for name in ("row", "partition", "bytes", "count", "sequence", "max_timestamp")]


class ArrowArray(Structure):
    """The array of Arrow's C data interface."""

    _fields_ = [
        *((name, c_int64) for name in ("length", "null_count", "offset", "n_buffers", "n_children")),
        *((name, c_void_p) for name in ("buffers", "children", "dictionary", "release", "private_data")),
    ]


_FUNCTIONS: dict[str, tuple[Any, list[Any]]] = {
    "decoder_new": (POINTER(Progress), [c_char_p, c_int64, c_int]),
    "decoder_free": (None, [c_void_p]),
    "decoder_limit": (None, [c_void_p, c_int64]),
    "decoder_open": (None, [c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p, c_int64]),
    "decoder_read": (c_int64, [c_void_p, c_int64, POINTER(ArrowArray)]),
    "encoder_new": (POINTER(Report), [c_int64, c_int, c_int, c_int, c_int64, c_int64]),
    "encoder_free": (None, [c_void_p]),
    "encoder_begin": (None, [c_void_p, c_int64, c_int64]),
    "encoder_ready": (c_int64, [c_void_p, c_int64, c_int64]),
    "encoder_add": (c_int64, [c_void_p, POINTER(ArrowArray), c_char_p, c_int64, c_int64, c_int64]),
    "encoder_take": (c_int64, [c_void_p, c_int64, POINTER(ArrowArray)]),
    "release": (None, [POINTER(ArrowArray)]),
    "has_codec": (c_int, [c_int]),
    "crc32c": (c_uint32, [c_char_p, c_int64, c_int]),
    "has_crc_instruction": (c_int, []),
}


class _Library:
    """The library's functions, without the prefix of their names."""

    def __init__(self) -> None:
        try:
            library = ctypes.CDLL(str(_FILE))
        except OSError as error:
            raise ImportError(
                f"The library of onceward-native does not load ({error}); native/README.md says how to build it."
            ) from error
        for name, (result, arguments) in _FUNCTIONS.items():
            function = getattr(library, f"onceward_{name}")
            function.restype, function.argtypes = result, arguments
            setattr(self, name, function)
        self._check_crc()

    def _check_crc(self) -> None:
        """A processor or a compiler that computes a wrong checksum must not write a batch."""
        known, long = b"123456789", bytes(range(251)) * 150  # long enough for each way of computing
        by_instruction, by_table = (self.crc32c(long, len(long), slow) for slow in (0, 1))
        if by_instruction != by_table or self.crc32c(known, len(known), 0) != 0xE3069283:
            raise ImportError("The library of onceward-native computes wrong checksums (CRC-32C) on this machine.")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)


lib = _Library()
