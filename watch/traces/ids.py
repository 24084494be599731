"""The ids of a checkpoint's trace. They follow from which checkpoint it is: a coordinator that takes the lead, and a
driver of a later generation, continue its trace without being passed a context."""

import hashlib
from dataclasses import dataclass

from onceward.protocol.values import CheckpointId, JobName

__all__ = ["TraceIds", "ids_of"]


@dataclass(frozen=True, kw_only=True)
class TraceIds:
    """As OpenTelemetry counts: big-endian integers."""

    trace: int
    """128 bits."""
    root: int
    """64 bits: the span of the whole checkpoint."""
    settle: int
    """64 bits: the coordinator's span of settling, which the driver's own is part of."""


def ids_of(store_id: str, job: JobName, checkpoint: CheckpointId) -> TraceIds:
    """The SHA-256 of ``STORE/JOB/CHECKPOINT``: 16 bytes of it for the trace, then 8 for each of two spans."""
    digest = hashlib.sha256(f"{store_id}/{job}/{checkpoint}".encode()).digest()
    parts = (digest[:16], digest[16:24], digest[24:])
    trace, root, settle = (int.from_bytes(part, "big") for part in parts)
    return TraceIds(trace=trace, root=root, settle=settle)
