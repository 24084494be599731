"""Validates the arguments of a Kafka source, with all problems in one message. Pure."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from onceward.common.errors import ConfigurationError
from onceward.connections.cluster import KafkaCluster
from onceward.protocol.settings import Duration, as_duration
from onceward.protocol.values import ParticipantName
from onceward.sources.kafka.driver.offsets import Limits
from onceward.sources.kafka.driver.sizing import AIM_BACK_TO_BACK, first_sizing
from onceward.sources.kafka.driver.splitting import MOST_RANGES
from onceward.sources.kafka.driver.starts import End, Reset, Start, end_problems, start_problems
from onceward.sources.kafka.executor.columns import COLUMNS, HEADERS
from onceward.sources.kafka.rates import RateLimit

__all__ = ["SourceArguments"]

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, kw_only=True)
class SourceArguments:
    """The arguments of a :class:`KafkaSource` as they were given, valid by construction."""

    cluster: str | KafkaCluster
    topics: Sequence[str] | str | None
    pattern: str | None
    start: Start
    reset: str
    end: End
    group_id: str | None
    include_headers: bool
    columns: Sequence[str] | None
    min_partitions: int | None
    max_offsets_per_checkpoint: int | None
    max_rate_per_partition: float | None
    adaptive: bool
    discovery_interval: Duration
    mirror_offsets: bool
    name: str

    def __post_init__(self) -> None:
        """Raises ConfigurationError that lists every problem."""
        problems = list(self._problems())
        if problems:
            raise ConfigurationError(
                "This Kafka source cannot be used; nothing was started. Change these:\n"
                + "\n".join(f"  - {problem}" for problem in problems)
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The topics, sorted; empty if ``pattern`` is given."""
        return tuple(sorted({self.topics} if isinstance(self.topics, str) else set(self.topics or ())))

    @property
    def whole_name(self) -> re.Pattern[str] | None:
        """``pattern``, to be matched against whole names."""
        return None if self.pattern is None else re.compile(self.pattern)

    @property
    def read_columns(self) -> tuple[str, ...]:
        """Columns of DataFrames and batches, in order."""
        if self.columns is not None:
            return tuple(self.columns)
        return (*COLUMNS, HEADERS) if self.include_headers else COLUMNS

    def limits(self, *, interval: timedelta | None, checkpoint_timeout: timedelta) -> Limits:
        """Return the limits of the job's first checkpoint. ``interval``: None if checkpoints run only on request."""
        seconds = None if interval is None else interval.total_seconds()
        rate = self.max_rate_per_partition
        return Limits(
            offsets=self.max_offsets_per_checkpoint,
            rate=None if rate is None else RateLimit(rate, interval=seconds or 0.0),
            sizing=first_sizing(seconds, checkpoint_timeout.total_seconds()) if self.adaptive else None,
        )

    def most_per_interval(self, interval: timedelta | None) -> int | None:
        """Return the records of a partition that its rate permits between two checkpoints; None without a rate."""
        rate = self.max_rate_per_partition
        seconds = interval.total_seconds() if interval else AIM_BACK_TO_BACK
        return None if rate is None else math.ceil(rate * seconds)

    def _problems(self) -> Iterator[str]:
        try:
            KafkaCluster.of(self.cluster)
        except ConfigurationError as error:
            yield str(error)
        topics = (self.topics,) if isinstance(self.topics, str) else tuple(self.topics or ())
        if (self.topics is None) == (self.pattern is None):
            yield "topics, pattern: give exactly one of them"
        elif self.pattern is None:
            yield from _topic_problems(topics)
        else:
            try:
                re.compile(self.pattern)
            except (re.error, TypeError) as error:
                yield f"pattern: {self.pattern!r} is not a regular expression ({error})"
        now = datetime.now(UTC)
        yield from start_problems(self.start, now)
        yield from end_problems(self.end, now)
        for argument, value in (("start", self.start), ("end", self.end)):
            if isinstance(value, Mapping) and topics:
                unread = sorted(str(topic) for topic in value if topic not in topics)
                if unread:
                    yield f"{argument}: names topics that are not read: {', '.join(unread)}"
        if self.reset not in tuple(Reset):
            yield f"reset: {self.reset!r} is none of {', '.join(Reset)}"
        if self.group_id is not None and (not isinstance(self.group_id, str) or not self.group_id):
            yield "group_id: must be text, or left out for the job's name"
        if self.columns is not None:
            yield from _column_problems(self.columns, include_headers=self.include_headers)
        yield from self._limit_problems()
        if self.adaptive not in (True, False):
            yield f"adaptive: {self.adaptive!r} is neither True nor False"
        try:
            if as_duration(self.discovery_interval) < timedelta(milliseconds=100):
                yield "discovery_interval: must be at least 100ms"
        except (ValueError, TypeError) as error:
            yield f"discovery_interval: {error}"
        try:
            ParticipantName(self.name)
        except (TypeError, ValueError) as error:
            yield f"name: {error}"

    def _limit_problems(self) -> Iterator[str]:
        least, offsets, rate = self.min_partitions, self.max_offsets_per_checkpoint, self.max_rate_per_partition
        if least is not None and not (_positive(least, whole=True) and least <= MOST_RANGES):
            yield f"min_partitions: must be a whole number from 1 to {MOST_RANGES}, or left out"
        if offsets is not None and not _positive(offsets, whole=True):
            yield "max_offsets_per_checkpoint: must be a whole number from 1, or left out"
        if rate is not None and not _positive(rate):
            yield "max_rate_per_partition: must be a number of records per second above 0, or left out"


def _topic_problems(names: Sequence[object]) -> Iterator[str]:
    if not names:
        yield "topics: name at least one"
    for name in names:
        if not isinstance(name, str) or not _TOPIC.fullmatch(name) or name in (".", ".."):
            yield f"topics: {name!r} is not a topic name (1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-', not '.' or '..')"


def _column_problems(columns: object, *, include_headers: bool) -> Iterator[str]:
    known = (*COLUMNS, HEADERS)
    if not isinstance(columns, Sequence) or isinstance(columns, str) or not columns:
        yield f"columns: give a sequence of at least one of {', '.join(known)}, or leave it out"
        return
    yield from (f"columns: {name!r} is none of {', '.join(known)}" for name in columns if name not in known)
    yield from (f"columns: {name!r} is there twice" for name in known if columns.count(name) > 1)
    if include_headers and HEADERS not in columns:
        yield f"columns: {HEADERS!r} is not one of them, although include_headers asks for it; leave one of both out"


def _positive(value: object, *, whole: bool = False) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float) or (whole and not isinstance(value, int)):
        return False
    return 0 < value < float("inf")
