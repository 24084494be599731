"""The error for a malformed message, and the checks of single values."""

import re
import sys
from datetime import timedelta
from functools import lru_cache

from onceward.protocol.values import MAX_ID, CheckpointId, Generation, JobName, Name, ParticipantName
from onceward.wire.limits import MAX_TEXT, MAX_TOKEN

__all__ = [
    "MalformedError",
    "as_base",
    "as_checkpoint",
    "as_count",
    "as_generation",
    "as_job",
    "as_kind",
    "as_microseconds",
    "as_owner",
    "as_participant",
    "as_rate",
    "as_reason",
    "as_text",
    "as_token",
]

_TOKEN = re.compile(rf"[!-~]{{1,{MAX_TOKEN}}}")


class MalformedError(ValueError):
    """A message that cannot be interpreted; the state is unchanged. The error names the field and the problem."""


def as_job(text: str) -> JobName:
    try:
        return JobName(text)
    except ValueError as error:
        raise MalformedError(f"job: {_short(error)}") from None


def as_participant(text: str) -> ParticipantName:
    try:
        return ParticipantName(text)
    except ValueError as error:
        raise MalformedError(f"participant: {_short(error)}") from None


@lru_cache(maxsize=256)  # the same few values recur
def as_kind(text: str) -> str:
    try:
        return sys.intern(str(Name(text)))  # one text for ten thousand slots
    except ValueError as error:
        raise MalformedError(f"kind: {_short(error)}") from None


def as_generation(number: int, field: str = "generation") -> Generation:
    return Generation(_within(field, number, 1))


def as_owner(number: int, field: str = "generation") -> Generation:
    """Return a generation, or 0 for none."""
    return Generation(_within(field, number, 0))


def as_checkpoint(number: int, field: str = "checkpoint") -> CheckpointId:
    return CheckpointId(_within(field, number, 1))


def as_base(number: int, field: str = "base") -> CheckpointId:
    """Return a checkpoint id, or 0 for none."""
    return CheckpointId(_within(field, number, 0))


def as_count(number: int, field: str, least: int = 0) -> int:
    return _within(field, number, least)


def as_microseconds(microseconds: int, field: str, least: int = 0) -> timedelta:
    """Return a duration of at most 285 years: a date before or after it can be represented."""
    return timedelta(microseconds=_within(field, microseconds, least))


def as_rate(number: float, field: str) -> float:
    if not 0 <= number <= MAX_ID:  # also refuses NaN
        raise MalformedError(f"{field}: {number} is not within 0 and {MAX_ID}")
    return number


def as_text(text: str, field: str) -> str:
    if len(text) > MAX_TEXT:
        raise MalformedError(f"{field}: {len(text)} characters, at most {MAX_TEXT} are taken")
    if "\0" in text:
        raise MalformedError(f"{field}: has a NUL character, which PostgreSQL cannot store")
    return text


def as_reason(text: str) -> str:
    """Return a person's reason, which is stored."""
    if not text.strip():
        raise MalformedError("reason: give your name and why; the history keeps it")
    return as_text(text, "reason")


def as_token(text: str, field: str) -> str:
    if not _TOKEN.fullmatch(text):
        raise MalformedError(f"{field}: must be 1 to {MAX_TOKEN} printable ASCII characters without spaces")
    return text


def _within(field: str, number: int, least: int) -> int:
    if not least <= number <= MAX_ID:
        raise MalformedError(f"{field}: {number} is not within {least} and {MAX_ID}")
    return number


def _short(error: ValueError) -> str:
    text = str(error)
    return text if len(text) <= 300 else f"{text[:200]} ... {text[-90:]}"
