"""A fault that an executor finds and the driver recognises in Spark's text: the offset to read is gone.

Spark passes an executor's exception to the driver as text, surrounded by stack traces of both languages, so the message
carries the facts as a marked piece of JSON. Also runs on executors: standard library only.
"""

import json
import re
from dataclasses import asdict, dataclass

from onceward.common.errors import CheckpointFailedError, HaltedError

__all__ = ["OffsetGone", "halt_for", "offset_gone", "offset_gone_in"]

_MARK = "onceward-offset-gone"
_MARKED = re.compile(rf"<{_MARK} (\{{[^<>]*\}})>")


@dataclass(frozen=True, kw_only=True)
class OffsetGone:
    """An offset that a broker does not have."""

    topic: str
    partition: int
    position: int
    """The offset to read next."""
    end: int
    """End of the range, exclusive."""
    log_start: int
    """First offset that the broker has; -1 = unknown."""
    log_end: int
    """End of its log, exclusive; -1 = unknown."""


def offset_gone(
    topic: str, partition: int, *, position: int, end: int, log_start: int, log_end: int
) -> CheckpointFailedError:
    """Return the error that a task raises. The driver turns it into a halt."""
    gone = OffsetGone(
        topic=topic, partition=partition, position=position, end=end, log_start=log_start, log_end=log_end
    )
    facts = json.dumps(asdict(gone), separators=(",", ":")).replace("<", "\\u003c").replace(">", "\\u003e")
    return CheckpointFailedError(f"{_describe(gone)} <{_MARK} {facts}>")


def offset_gone_in(text: str) -> OffsetGone | None:
    """Return the fault in an error text, whatever Spark wrapped around it."""
    match = _MARKED.search(text)
    return OffsetGone(**json.loads(match[1])) if match else None


def halt_for(gone: OffsetGone) -> HaltedError:
    skip = (
        f"give them up and read on (onceward resolve JOB --skip-input {gone.topic}:{gone.partition} --to "
        f"{gone.log_start} --reason 'NAME: REASON'), "
        if gone.log_start >= 0 and gone.position < gone.log_start
        else ""
    )
    return HaltedError(
        f"{_describe(gone)} Decide what these records are worth: bring them back into the topic, {skip}or start a job "
        "under another name with start= where the data begins."
    )


def _describe(gone: OffsetGone) -> str:
    where = f"{gone.topic}-{gone.partition}"
    known = gone.log_start >= 0
    if known and gone.position < gone.log_start:
        return (
            f"Input is gone: {where} is to be read from offset {gone.position}, but its log starts at {gone.log_start} "
            f"now, so {gone.log_start - gone.position} offsets were deleted (by retention or a person) before they "
            "were read. Nothing was skipped."
        )
    if known and gone.log_end < gone.position:
        return (
            f"Input is gone: {where} is to be read from offset {gone.position}, but its log ends at {gone.log_end} "
            "now: the partition lost records that were already read (an unclean election) or was recreated. Nothing "
            "was read from it."
        )
    limits = (
        f"its log is [{gone.log_start}, {gone.log_end})" if known else "the broker did not report what its log holds"
    )
    return (
        f"Input is gone: {where} is to be read from offset {gone.position} to {gone.end}, which the broker refused as "
        f"out of range; {limits}. Nothing was skipped."
    )
