"""Every limit of the wire in one place."""

__all__ = [
    "MAX_CONCURRENT_RPCS",
    "MAX_DEPTH",
    "MAX_LISTED",
    "MAX_PARTICIPANTS",
    "MAX_REQUEST_BYTES",
    "MAX_RESPONSE_BYTES",
    "MAX_TEXT",
    "MAX_TOKEN",
    "MAX_VERSION",
]

MAX_REQUEST_BYTES = 4 * 1024 * 1024
"""Of one request. What a participant contributes to one checkpoint has to fit."""

MAX_PARTICIPANTS = 16
"""Members of one job."""

MAX_RESPONSE_BYTES = (MAX_PARTICIPANTS + 1) * MAX_REQUEST_BYTES
"""Of one response: a grant carries what all participants contributed."""

MAX_TEXT = 8192
"""Characters of a reason, a detail or an evidence. Longer ones are cut by the client and refused by the service."""

MAX_TOKEN = 128
"""Characters of a driver token or a store id."""

MAX_DEPTH = 32
"""Levels of a document's JSON."""

MAX_VERSION = 2**31 - 1
"""Of a document."""

MAX_LISTED = 1000
"""Checkpoints in one listing."""

MAX_CONCURRENT_RPCS = 2000
"""Open calls of one coordinator, instruction streams included; more are refused with RESOURCE_EXHAUSTED."""
