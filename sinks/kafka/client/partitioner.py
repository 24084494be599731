"""Which partition a key belongs to: as Java's producers and librdkafka's ``murmur2_random`` say. Pure.

Decided here, for a column of keys at once, because it is most of what the client does when it takes a record: records
of one partition that come together are taken in a third of the time (docs/performance.md).
"""

import numpy as np
import numpy.typing as npt

__all__ = ["LONGEST_KEY", "murmur2", "partitions"]

LONGEST_KEY = 64
"""Bytes; longer keys are the client's own business, which is faster from about there on."""

_SEED = np.uint32(0x9747B28C)
_M = np.uint32(0x5BD1E995)
_POSITIVE = np.uint32(0x7FFFFFFF)


def partitions(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], count: int
) -> npt.NDArray[np.int32]:
    """Of keys with ``lengths`` bytes at ``starts`` of ``data``, for a topic of ``count`` partitions.

    Java: ``Utils.toPositive(Utils.murmur2(key)) % count`` (``BuiltInPartitioner.partitionForKey``).
    """
    return ((murmur2(data, starts, lengths) & _POSITIVE) % np.uint32(count)).astype(np.int32)


def murmur2(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint32]:
    """Hashes as those of ``org.apache.kafka.common.utils.Utils.murmur2``, word by word for all keys at once."""
    hashes = _SEED ^ lengths.astype(np.uint32)
    if not len(lengths):
        return hashes
    whole, rest = lengths >> 2, lengths & 3
    words = _words(data, starts, int(lengths.max()) // 4 + 1)
    shortest = int(whole.min())
    for index in range(int(whole.max())):
        k = words[:, index] * _M
        k ^= k >> np.uint32(24)
        k *= _M
        mixed = (hashes * _M) ^ k
        hashes = mixed if index < shortest else np.where(whole > index, mixed, hashes)
    if rest.any():
        last = words[np.arange(len(whole)), whole] & _MASKS[rest]
        hashes = np.where(rest > 0, (hashes ^ last) * _M, hashes)
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    hashes ^= hashes >> np.uint32(15)
    return hashes


_MASKS = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], dtype=np.uint32)


def _words(data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.uint32]:
    """The first ``count`` little-endian words of each key; what is behind a key's end is anything."""
    if not len(data):
        return np.zeros((len(starts), count), np.uint32)
    at = starts[:, None] + np.arange(4 * count)
    words: npt.NDArray[np.uint32] = data[np.minimum(at, len(data) - 1, out=at)].view("<u4")
    return words
