"""The partition of a key, as Java's producers and librdkafka's ``murmur2_random`` compute it. Pure.

Computed here for a whole column of keys, because partitioning is most of the client's work when it takes a record:
it takes consecutive records of one partition in a third of the time (benchmarks/RESULTS.md).
"""

from itertools import repeat

import numpy as np
import numpy.typing as npt

from onceward.connections.rdkafka.library import lib

__all__ = ["LONGEST_KEY", "murmur2", "partitions"]

LONGEST_KEY = 256
"""Bytes. Each longer key takes one call of the library, which is faster from about that length."""

_SEED = np.uint32(0x9747B28C)
_M = np.uint32(0x5BD1E995)
_POSITIVE = np.uint32(0x7FFFFFFF)
_LAST_BYTES = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF], dtype=np.uint32)


def partitions(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], count: int
) -> npt.NDArray[np.int32]:
    """Return the partitions of keys with ``lengths`` bytes at ``starts`` of ``data``; the topic has ``count`` of them.

    Java: ``Utils.toPositive(Utils.murmur2(key)) % count`` (``BuiltInPartitioner.partitionForKey``).
    """
    long = lengths > LONGEST_KEY
    if not long.any():
        return ((murmur2(data, starts, lengths) & _POSITIVE) % np.uint32(count)).astype(np.int32)
    found = np.empty(len(lengths), np.int32)
    found[~long] = partitions(data, starts[~long], lengths[~long], count)
    keys = (starts[long] + data.ctypes.data).tolist(), lengths[long].tolist()
    found[long] = [*map(lib.msg_partitioner_murmur2, repeat(None), *keys, repeat(count), repeat(None), repeat(None))]
    return found


def murmur2(
    data: npt.NDArray[np.uint8], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint32]:
    """Return hashes equal to ``org.apache.kafka.common.utils.Utils.murmur2``, word by word for all keys at once."""
    hashes = _SEED ^ lengths.astype(np.uint32)
    if not len(lengths):
        return hashes
    if len(data) < 4:
        data = np.concatenate([data, np.zeros(4, np.uint8)])
    words = np.ndarray((len(data) - 3,), "<u4", data, strides=(1,))  # one word starting at every byte
    whole, rest = lengths >> 2, lengths & 3
    shortest = int(whole.min())
    for index in range(shortest):
        hashes = _mixed(hashes, words[starts + 4 * index])
    index, longer = shortest, np.flatnonzero(whole > shortest)
    while len(longer):
        hashes[longer] = _mixed(hashes[longer], words[starts[longer] + 4 * index])
        index += 1
        longer = longer[whole[longer] > index]
    if rest.any():
        at = starts + 4 * whole
        inside = np.minimum(at, len(words) - 1)  # the data's last bytes are the upper bytes of the last word
        last = words[inside] >> np.minimum(8 * (at - inside), 24).astype(np.uint32) & _LAST_BYTES[rest]
        hashes = np.where(rest > 0, (hashes ^ last) * _M, hashes)
    hashes ^= hashes >> np.uint32(13)
    hashes *= _M
    hashes ^= hashes >> np.uint32(15)
    return hashes


def _mixed(hashes: npt.NDArray[np.uint32], words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    k = words * _M
    k ^= k >> np.uint32(24)
    k *= _M
    return (hashes * _M) ^ k
