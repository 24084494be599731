"""Checkpoint settings, with Flink's names and meanings where Flink has the option."""

import re
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import Any, TypeAlias

__all__ = ["CheckpointSettings", "Duration", "InvalidSettingsError", "as_duration"]

Duration: TypeAlias = timedelta | str | int | float
"""A timedelta, or text such as ``250ms``, ``1s``, ``2min``, ``1h``, ``1d``. A bare number is allowed only for 0."""

_UNITS = {
    "us": timedelta(microseconds=1),
    "ms": timedelta(milliseconds=1),
    "s": timedelta(seconds=1),
    "min": timedelta(minutes=1),
    "h": timedelta(hours=1),
    "d": timedelta(days=1),
}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*")
_LONGEST = timedelta(days=3650)


class InvalidSettingsError(ValueError):
    """Settings that are invalid; the message lists every problem."""


def as_duration(value: Duration) -> timedelta:
    """Parse a duration. Raises ValueError for text without a known unit, bare numbers other than 0, negative values,
    and more than 3650 days."""
    if isinstance(value, timedelta):
        duration = value
    elif isinstance(value, bool):
        raise ValueError(f"{value!r} is not a duration")
    elif isinstance(value, (int, float)):
        if value != 0:
            raise ValueError(f"{value!r} has no unit; write for example '{value}s'")
        duration = timedelta(0)
    else:
        match = _TEXT.fullmatch(value)
        if match is None or match[2] not in _UNITS:
            raise ValueError(f"{value!r} is not a duration; write for example '250ms', '1s', '2min', '1h'")
        try:
            duration = float(match[1]) * _UNITS[match[2]]
        except OverflowError:
            raise ValueError(f"{value!r} is longer than {_LONGEST.days} days") from None
    if duration < timedelta(0):
        raise ValueError(f"{value!r} is negative")
    if duration > _LONGEST:
        raise ValueError(f"{value!r} is longer than {_LONGEST.days} days")
    return duration


@dataclass(frozen=True, kw_only=True)
class CheckpointSettings:
    """How a job's checkpoints are taken. Validated at construction; one error reports all problems.

    Durations may be given as timedelta or text; the attributes are timedelta.
    """

    interval: Duration | None = "1s"
    """Time between two triggers. When a checkpoint takes longer, the next one follows at once. 0 = back to back, None =
    only on demand."""
    timeout: Duration = "2min"
    """A checkpoint that is not acknowledged within this time is aborted."""
    min_pause: Duration = 0
    """Minimum time between a completion and the next trigger."""
    tolerable_failed_checkpoints: int = 0
    """Consecutive counted failures that do not fail the job."""
    num_retained: int = 10
    """Completed checkpoints kept in the store."""
    lease: Duration = "10s"
    """A driver that has not renewed for this long may be replaced."""
    stream_grace: Duration = "2s"
    """A driver whose instruction stream is gone for this long may be replaced."""
    orphan_grace: Duration = "30s"
    """When a job has had no driver for this long, the coordinator settles its decided transactions."""

    def __post_init__(self) -> None:
        problems: list[str] = []
        for name in ("interval", "timeout", "min_pause", "lease", "stream_grace", "orphan_grace"):
            if name == "interval" and self.interval is None:
                continue
            try:
                object.__setattr__(self, name, as_duration(getattr(self, name)))
            except (ValueError, TypeError) as error:
                problems.append(f"{name}: {error}")
        if not problems:
            problems += self._relations()
        for name, least in (("tolerable_failed_checkpoints", 0), ("num_retained", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= 1_000_000:
                problems.append(f"{name}: {value!r} is not a whole number from {least} to 1000000")
        if problems:
            raise InvalidSettingsError("Checkpoint settings cannot be used:\n  " + "\n  ".join(problems))

    def _relations(self) -> list[str]:
        limits = [
            (self.seconds("timeout") < 0.1, f"timeout: {self.timeout} is below the least possible 100 ms"),
            (self.seconds("lease") < 1, f"lease: {self.lease} is below the least possible 1 s"),
            (
                self.seconds("stream_grace") > self.seconds("lease"),
                f"stream_grace: {self.stream_grace} is longer than the lease of {self.lease}",
            ),
            (
                self.seconds("orphan_grace") < self.seconds("lease"),
                f"orphan_grace: {self.orphan_grace} is shorter than the lease of {self.lease}",
            ),
        ]
        return [problem for wrong, problem in limits if wrong]

    def seconds(self, name: str) -> float:
        """The duration called ``name`` in seconds. Raises TypeError for an interval of None."""
        return as_duration(getattr(self, name)).total_seconds()

    def to_json(self) -> dict[str, Any]:
        """Settings as JSON, durations in seconds; the inverse of :meth:`from_json`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {k: v.total_seconds() if isinstance(v, timedelta) else v for k, v in values.items()}

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> "CheckpointSettings":
        counts = {"tolerable_failed_checkpoints", "num_retained"}
        values: dict[str, Any] = {
            field.name: raw[field.name]
            if field.name in counts or raw[field.name] is None
            else timedelta(seconds=raw[field.name])
            for field in fields(cls)
            if field.name in raw
        }
        return cls(**values)
