"""A search for secrets in what a run leaves and shows."""

import base64
import io
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

__all__ = ["Left", "arguments_of", "files_in", "found_in"]

Left = dict[str, bytes]
"""What there is, by its place."""

_SHORTEST = 32
"""Of a secret: half of it must be long enough to be no accident."""
_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"PK\x03\x04": "zip", b"\x04\x22\x4d\x18": "lz4"}


def found_in(left: Mapping[str, bytes], secrets: Mapping[str, str]) -> list[str]:
    """Where which secret is, also a half of it, and in another encoding. Raises AssertionError for compressed content,
    in which nothing would be found."""
    packed = [f"{place}: {kind}" for place, content in left.items() if (kind := _compression(content))]
    assert not packed, f"these cannot be searched: {packed}"
    return [
        f"{name} in {place}"
        for name, secret in secrets.items()
        for place, content in left.items()
        if any(form in content for form in _forms(secret))
    ]


def files_in(directory: Path, *, without: Path) -> Left:
    """Every file below the directory, and what is in its zip files; of ``without`` and what is below it, none. A file
    that is removed meanwhile is left out."""
    left: Left = {}
    for path in (Path(folder, name) for folder, _, names in os.walk(directory) for name in names):
        if path.is_file() and without not in path.parents:
            with suppress(FileNotFoundError):
                left[f"file {path.relative_to(directory)}"] = _unzipped(path.read_bytes())
    return left


def arguments_of(pid: int) -> bytes:
    """The command line that every user of the machine sees; empty for a process that has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def _forms(secret: str) -> Iterator[bytes]:
    assert len(secret) >= _SHORTEST, "it could be found by accident"
    middle = len(secret) // 2
    for half in (secret[:middle], secret[middle:]):
        text = half.encode()
        yield text
        yield half.encode("utf-16-le")
        yield text.hex().encode()
        yield text.hex().upper().encode()
        for shift in range(3):
            # without the characters that depend on what stands before and after
            encoded = base64.b64encode(b"\0" * shift + text)
            yield encoded[4 if shift else 0 : -4]


def _unzipped(content: bytes) -> bytes:
    if not zipfile.is_zipfile(io.BytesIO(content)):
        return content
    with zipfile.ZipFile(io.BytesIO(content)) as packed:
        return b"\0".join(map(packed.read, packed.namelist()))


def _compression(content: bytes) -> str:
    return next((kind for begin, kind in _COMPRESSED.items() if content.startswith(begin)), "")
