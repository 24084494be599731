"""librdkafka's C interface (rdkafka.h), as far as records need it, from the library that confluent-kafka ships.

confluent-kafka creates Python objects for each record that it reads, and needs one call for each that it writes. The
library itself reads and writes whole arrays of records; benchmarks/RESULTS.md has the savings. It keeps this interface
and the layout of these structures compatible within ``librdkafka.so.1``.

The library is loaded through confluent-kafka's own module, so both use the same copy, wherever a wheel puts it.
"""

import ctypes
from ctypes import CFUNCTYPE, POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_ssize_t, c_void_p
from typing import Any

import numpy as np
from confluent_kafka import KafkaError, KafkaException, cimpl

__all__ = [
    "COPY",
    "DELIVERED",
    "ERRED",
    "LOGGED",
    "MESSAGE",
    "PURGE_ALL",
    "THROTTLED",
    "VALUE_UNION",
    "Metadata",
    "TopicPosition",
    "ValueType",
    "lib",
    "raise_error",
]

COPY = 0x2
"""RD_KAFKA_MSG_F_COPY: the call copies key and value, so the caller may free them afterwards."""
PURGE_ALL = 0x1 | 0x2
"""RD_KAFKA_PURGE_F_QUEUE and _INFLIGHT."""

MESSAGE = np.dtype(
    [
        ("err", np.intc),
        ("rkt", np.uintp),
        ("partition", np.int32),
        ("payload", np.uintp),
        ("len", np.uintp),
        ("key", np.uintp),
        ("key_len", np.uintp),
        ("offset", np.int64),
        ("private", np.uintp),
    ],
    align=True,
)
"""rd_kafka_message_t"""

VALUE_UNION = np.dtype(
    {
        "names": ["vtype", "i32", "i64", "ptr", "size", "val", "val_size"],
        "formats": [np.intc, np.int32, np.int64, np.uintp, np.uintp, np.uintp, np.intp],
        "offsets": [0, 8, 8, 8, 16, 16, 24],
        "itemsize": 72,
    }
)
"""rd_kafka_vu_t: its kind, and a union; the members here are those of the kinds in `ValueType`."""


class ValueType:
    """rd_kafka_vtype_t: the kinds of arguments of ``rd_kafka_produceva``."""

    TOPIC = 2
    PARTITION = 3
    VALUE = 4
    KEY = 5
    FLAGS = 7
    TIMESTAMP = 8
    HEADER = 9


class TopicPosition(ctypes.Structure):
    """rd_kafka_topic_partition_t"""

    _fields_ = [
        ("topic", c_char_p),
        ("partition", c_int32),
        ("offset", c_int64),
        ("metadata", c_void_p),
        ("metadata_size", c_size_t),
        ("opaque", c_void_p),
        ("err", c_int),
        ("_private", c_void_p),
    ]


class TopicPositions(ctypes.Structure):
    """rd_kafka_topic_partition_list_t"""

    _fields_ = [("cnt", c_int), ("size", c_int), ("elems", POINTER(TopicPosition))]


class _PartitionMetadata(ctypes.Structure):
    """rd_kafka_metadata_partition_t"""

    _fields_ = [
        ("id", c_int32),
        ("err", c_int),
        ("leader", c_int32),
        ("replica_cnt", c_int),
        ("replicas", c_void_p),
        ("isr_cnt", c_int),
        ("isrs", c_void_p),
    ]


class _TopicMetadata(ctypes.Structure):
    """rd_kafka_metadata_topic_t"""

    _fields_ = [
        ("topic", c_char_p),
        ("partition_cnt", c_int),
        ("partitions", POINTER(_PartitionMetadata)),
        ("err", c_int),
    ]


class Metadata(ctypes.Structure):
    """rd_kafka_metadata_t"""

    _fields_ = [
        ("broker_cnt", c_int),
        ("brokers", c_void_p),
        ("topic_cnt", c_int),
        ("topics", POINTER(_TopicMetadata)),
        ("orig_broker_id", c_int32),
        ("orig_broker_name", c_char_p),
    ]


DELIVERED = CFUNCTYPE(None, c_void_p, c_void_p, c_void_p)
"""dr_msg_cb: client, message, opaque."""
ERRED = CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_void_p)
"""error_cb: client, code, reason, opaque."""
LOGGED = CFUNCTYPE(None, c_void_p, c_int, c_char_p, c_char_p)
"""log_cb: client, syslog level, facility, line."""

THROTTLED = CFUNCTYPE(None, c_void_p, c_char_p, c_int32, c_int, c_void_p)
"""throttle_cb: client, broker's name and id, milliseconds, opaque."""

_PROTOTYPES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "conf_new": (c_void_p, ()),
    "conf_set": (c_int, (c_void_p, c_char_p, c_char_p, c_char_p, c_size_t)),
    "conf_destroy": (None, (c_void_p,)),
    "conf_set_dr_msg_cb": (None, (c_void_p, DELIVERED)),
    "conf_set_error_cb": (None, (c_void_p, ERRED)),
    "conf_set_log_cb": (None, (c_void_p, LOGGED)),
    "conf_set_throttle_cb": (None, (c_void_p, THROTTLED)),
    "new": (c_void_p, (c_int, c_void_p, c_char_p, c_size_t)),
    "destroy": (None, (c_void_p,)),
    "name": (c_char_p, (c_void_p,)),
    "brokers_add": (c_int, (c_void_p, c_char_p)),
    "set_log_queue": (c_int, (c_void_p, c_void_p)),
    "last_error": (c_int, ()),
    "fatal_error": (c_int, (c_void_p, c_char_p, c_size_t)),
    "error_code": (c_int, (c_void_p,)),
    "error_string": (c_char_p, (c_void_p,)),
    "error_is_fatal": (c_int, (c_void_p,)),
    "error_is_retriable": (c_int, (c_void_p,)),
    "error_txn_requires_abort": (c_int, (c_void_p,)),
    "error_destroy": (None, (c_void_p,)),
    "topic_new": (c_void_p, (c_void_p, c_char_p, c_void_p)),
    "topic_destroy": (None, (c_void_p,)),
    "metadata": (c_int, (c_void_p, c_int, c_void_p, POINTER(POINTER(Metadata)), c_int)),
    "metadata_destroy": (None, (POINTER(Metadata),)),
    "init_transactions": (c_void_p, (c_void_p, c_int)),
    "begin_transaction": (c_void_p, (c_void_p,)),
    "abort_transaction": (c_void_p, (c_void_p, c_int)),
    "send_offsets_to_transaction": (c_void_p, (c_void_p, c_void_p, c_void_p, c_int)),
    "consumer_group_metadata_new": (c_void_p, (c_char_p,)),
    "consumer_group_metadata_destroy": (None, (c_void_p,)),
    "topic_partition_list_new": (c_void_p, (c_int,)),
    "topic_partition_list_add": (POINTER(TopicPosition), (c_void_p, c_char_p, c_int32)),
    "topic_partition_list_destroy": (None, (c_void_p,)),
    "mem_malloc": (c_void_p, (c_void_p, c_size_t)),
    "mem_free": (None, (c_void_p, c_void_p)),
    "produce_batch": (c_int, (c_void_p, c_int32, c_int, c_void_p, c_int)),
    "produceva": (c_void_p, (c_void_p, c_void_p, c_size_t)),
    "poll": (c_int, (c_void_p, c_int)),
    "flush": (c_int, (c_void_p, c_int)),
    "purge": (c_int, (c_void_p, c_int)),
    "outq_len": (c_int, (c_void_p,)),
    "poll_set_consumer": (c_int, (c_void_p,)),
    "queue_get_consumer": (c_void_p, (c_void_p,)),
    "queue_destroy": (None, (c_void_p,)),
    "queue_forward": (None, (c_void_p, c_void_p)),
    "queue_get_partition": (c_void_p, (c_void_p, c_char_p, c_int32)),
    "queue_io_event_enable": (None, (c_void_p, c_int, c_char_p, c_size_t)),
    "queue_length": (c_size_t, (c_void_p,)),
    "queue_yield": (None, (c_void_p,)),
    "assign": (c_int, (c_void_p, c_void_p)),
    "incremental_unassign": (c_void_p, (c_void_p, c_void_p)),
    "consume_batch_queue": (c_ssize_t, (c_void_p, c_int, c_void_p, c_size_t)),
    "query_watermark_offsets": (c_int, (c_void_p, c_char_p, c_int32, POINTER(c_int64), POINTER(c_int64), c_int)),
    "consumer_close": (c_int, (c_void_p,)),
    "messages_destroy": (None, (c_void_p,)),
}
"""Result and argument types of functions, by name without ``rd_kafka_``. These calls release the interpreter's lock."""

_SHORT_PROTOTYPES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "topic_name": (c_char_p, (c_void_p,)),
    "message_errstr": (c_char_p, (c_void_p,)),
    "message_timestamp": (c_int64, (c_void_p, c_void_p)),
    "message_leader_epoch": (c_int32, (c_void_p,)),
    "get_watermark_offsets": (c_int, (c_void_p, c_char_p, c_int32, POINTER(c_int64), POINTER(c_int64))),
    "position": (c_int, (c_void_p, c_void_p)),
    "topic_partition_get_leader_epoch": (c_int32, (POINTER(TopicPosition),)),
    "message_headers": (c_int, (c_void_p, c_void_p)),
    "header_cnt": (c_size_t, (c_void_p,)),
    "header_get_all": (c_int, (c_void_p, c_size_t, c_void_p, c_void_p, c_void_p)),
    "message_destroy": (None, (c_void_p,)),
    "msg_partitioner_murmur2": (c_int32, (c_void_p, c_void_p, c_size_t, c_int32, c_void_p, c_void_p)),
    "messages_count": (c_size_t, (c_void_p,)),
    "messages_get": (c_void_p, (c_void_p, c_size_t)),
}
"""Functions that only look at memory. These calls keep the interpreter's lock: releasing and taking it costs more."""

_YOUNG = frozenset({"messages_destroy", "messages_count", "messages_get"})
"""Added with share consumers (KIP-932), whose interface is not declared stable; may be missing."""


class _Library:
    """The functions, by name without ``rd_kafka_``. Those in `_YOUNG` may be None."""

    def __init__(self) -> None:
        file = cimpl.__file__
        for loaded, prototypes in (
            (ctypes.CDLL(file), _PROTOTYPES),
            (ctypes.PyDLL(file), _SHORT_PROTOTYPES),
        ):
            for name, (result, arguments) in prototypes.items():
                function = getattr(loaded, f"rd_kafka_{name}", None)
                if function is not None:
                    function.restype, function.argtypes = result, arguments
                elif name not in _YOUNG:
                    raise ImportError(
                        f"confluent-kafka's library ({file}) has no rd_kafka_{name}; install 2.16 or later"
                    )
                setattr(self, name, function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"rd_kafka_{name} has no prototype here")


lib = _Library()


def raise_error(error: int | None) -> None:
    """Raise KafkaException with the content of an ``rd_kafka_error_t *``, and free it; do nothing for NULL."""
    if not error:
        return
    try:
        said = KafkaError(
            lib.error_code(error),
            lib.error_string(error).decode(errors="replace"),
            fatal=bool(lib.error_is_fatal(error)),
            retriable=bool(lib.error_is_retriable(error)),
            txn_requires_abort=bool(lib.error_txn_requires_abort(error)),
        )
    finally:
        lib.error_destroy(error)
    raise KafkaException(said)
