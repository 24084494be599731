"""Every limit of the wire in one place."""

__all__ = [
    "MAX_BACK_WITHIN_S",
    "MAX_CHECKPOINT_BYTES",
    "MAX_CONCURRENT_RPCS",
    "MAX_DEPTH",
    "MAX_HELD_BYTES",
    "MAX_LABEL",
    "MAX_LISTED",
    "MAX_MESSAGE_BYTES",
    "MAX_PARTICIPANTS",
    "MAX_REQUEST_BYTES",
    "MAX_RESPONSE_BYTES",
    "MAX_TEXT",
    "MAX_TOKEN",
    "MAX_TROUBLES",
    "MAX_VERSION",
]

MAX_REQUEST_BYTES = 32 * 1024 * 1024
"""Of one request. What a participant contributes to one checkpoint has to fit."""

MAX_MESSAGE_BYTES = 64 * 1024
"""Of one message to the coordinator. A longer request is cut into several, at any byte."""

MAX_HELD_BYTES = 4 * MAX_REQUEST_BYTES
"""Of all requests that a coordinator is taking in or answering, over all connections."""

MAX_CHECKPOINT_BYTES = 2 * MAX_REQUEST_BYTES
"""Of what all participants contribute to one checkpoint."""

MAX_PARTICIPANTS = 16
"""Members of one job."""

MAX_RESPONSE_BYTES = 2 * MAX_CHECKPOINT_BYTES
"""Of one response: a grant carries what all participants contributed, lost slots written again included."""

MAX_TEXT = 8192
"""Characters of a reason, a detail or an evidence. Longer ones are cut by the client and refused by the service."""

MAX_TOKEN = 128
"""Characters of a driver's or a request's token, or a store id."""

MAX_LABEL = 128
"""Characters of a savepoint's name."""

MAX_BACK_WITHIN_S = 86_400
"""Longest time within which a restarting driver may promise to be back."""

MAX_DEPTH = 32
"""Levels of a document's JSON."""

MAX_VERSION = 2**31 - 1
"""Of a document."""

MAX_TROUBLES = 16
"""Broken links that a driver tells with one renewal."""

MAX_LISTED = 1000
"""Rows in one listing."""

MAX_CONCURRENT_RPCS = 2000
"""Open calls of one coordinator, instruction streams included; more are refused with RESOURCE_EXHAUSTED."""
