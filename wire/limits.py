"""All limits of the wire."""

__all__ = [
    "MAX_BACK_WITHIN_S",
    "MAX_CALLS_OF_PEER",
    "MAX_CHECKPOINT_BYTES",
    "MAX_CONCURRENT_RPCS",
    "MAX_CONTAINERS",
    "MAX_DEPTH",
    "MAX_HEALTH_CALLS",
    "MAX_HEALTH_CALLS_OF_CONNECTION",
    "MAX_HELD_BYTES",
    "MAX_JOBS",
    "MAX_KEPT_BYTES",
    "MAX_LABEL",
    "MAX_LISTED",
    "MAX_MESSAGE_BYTES",
    "MAX_PARTICIPANTS",
    "MAX_REQUEST_BYTES",
    "MAX_RESPONSE_BYTES",
    "MAX_RETAINED",
    "MAX_SAVEPOINTS",
    "MAX_SHOWN_PARTITIONS",
    "MAX_SHOWN_TEXT",
    "MAX_SLOTS",
    "MAX_STREAMS",
    "MAX_TEXT",
    "MAX_TOKEN",
    "MAX_TROUBLES",
    "MAX_VALUES",
    "MAX_VERSION",
]

MAX_REQUEST_BYTES = 32 * 1024 * 1024
"""Of one request. A participant's contribution to one checkpoint must fit."""

MAX_MESSAGE_BYTES = 64 * 1024
"""Of one message to the coordinator. A longer request is cut into several messages, at any byte."""

MAX_HELD_BYTES = 4 * MAX_REQUEST_BYTES
"""Of all requests that a coordinator is receiving or answering, over all connections."""

MAX_CHECKPOINT_BYTES = 2 * MAX_REQUEST_BYTES
"""Of the contributions of all participants to one checkpoint."""

MAX_KEPT_BYTES = 4 * 1024**3
"""Of the completed checkpoints that a job keeps: their number times the size of the one that is acknowledged."""

MAX_PARTICIPANTS = 16
"""Participants of one job."""

MAX_RESPONSE_BYTES = 2 * MAX_CHECKPOINT_BYTES
"""Of one response: a grant carries the contributions of all participants, including rewritten lost slots."""

MAX_TEXT = 8192
"""Characters of a reason, a detail or an evidence. The client cuts longer ones; the service rejects them."""

MAX_TOKEN = 128
"""Characters of a driver's or a request's token, or a store id."""

MAX_LABEL = 128
"""Characters of a savepoint's name."""

MAX_BACK_WITHIN_S = 86_400
"""Longest time within which a restarting driver may promise to return."""

MAX_DEPTH = 32
"""Levels of a document's JSON."""

MAX_VALUES = 4_000_000
"""JSON values in all documents of one request. The longest ordinary request has fewer, because names and numbers take
bytes."""

MAX_CONTAINERS = 1_000_000
"""Objects and lists among them. The longest ordinary request has fewer. A request of that length made of empty lists
would take half a minute of all jobs' time, and much memory."""

MAX_SLOTS = 200_000
"""Slots that one request names. An acknowledgement has room for fewer."""

MAX_VERSION = 2**31 - 1
"""Of a document."""

MAX_TROUBLES = 16
"""Broken links that a driver reports with one renewal."""

MAX_SHOWN_PARTITIONS = 50
"""Partitions of its input that a driver reports with one renewal: those with the most lag."""

MAX_SHOWN_TEXT = 300
"""Characters kept of each text that a driver reports with a renewal. Every listing of jobs has them, and the
coordinator holds them in memory."""

MAX_LISTED = 1000
"""Rows in one listing."""

MAX_CONCURRENT_RPCS = 2000
"""Open calls of one coordinator, including instruction streams; more are rejected with RESOURCE_EXHAUSTED."""

MAX_CALLS_OF_PEER = 500
"""Open calls of one peer of a rights file, over all of its connections. A driver has about five."""

MAX_HEALTH_CALLS = 2_000
"""Open health checks, and as many streams of them; apart from the other calls."""

MAX_HEALTH_CALLS_OF_CONNECTION = 8
"""Open health checks of one connection, and as many streams of them. A client has one."""

MAX_JOBS = 10_000
"""Jobs that are not forgotten, in the store of one coordinator."""

MAX_RETAINED = 10_000
"""Completed checkpoints that a job may have kept."""

MAX_SAVEPOINTS = 100
"""Savepoints of one job, with those requested."""

MAX_STREAMS = 100
"""Open calls of one connection; its further calls wait. A driver has about five."""
