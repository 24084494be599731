"""Validates the arguments of a Kafka source, with all problems in one message. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from onceward.connections.cluster import KafkaCluster
from onceward.coordinator.errors import ConfigurationError
from onceward.coordinator.protocol.settings import Duration, as_duration
from onceward.coordinator.protocol.values import ParticipantName
from onceward.sources.kafka.driver.limits import RateLimit
from onceward.sources.kafka.driver.offsets import Limits
from onceward.sources.kafka.driver.sizing import first_sizing
from onceward.sources.kafka.driver.splitting import MOST_RANGES
from onceward.sources.kafka.driver.starts import End, Reset, Start, end_problems, start_problems
from onceward.sources.kafka.executor.columns import COLUMNS, HEADERS

__all__ = ["SourceArguments"]

_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")


@dataclass(frozen=True, kw_only=True)
class SourceArguments:
    """Arguments of a source, valid by construction."""

    cluster: KafkaCluster
    topics: tuple[str, ...]
    """Sorted; empty if ``pattern`` is given."""
    pattern: re.Pattern[str] | None
    """Matched against whole names."""
    start: Start
    reset: Reset
    end: End
    group_id: str | None
    """None = the job's name."""
    columns: tuple[str, ...]
    """Columns of DataFrames and batches, in order."""
    min_partitions: int | None
    max_offsets: int | None
    max_rate: float | None
    adaptive: bool
    discovery_interval: timedelta
    mirror_offsets: bool
    name: ParticipantName

    @classmethod
    def of(
        cls,
        cluster: str | KafkaCluster,
        *,
        topics: Sequence[str] | str | None,
        pattern: str | None,
        start: Start,
        reset: str,
        end: End,
        group_id: str | None,
        include_headers: bool,
        columns: Sequence[str] | None,
        min_partitions: int | None,
        max_offsets_per_checkpoint: int | None,
        max_rate_per_partition: float | None,
        adaptive: bool,
        discovery_interval: Duration,
        mirror_offsets: bool,
        name: str,
    ) -> "SourceArguments":
        """Validate the arguments. Raises ConfigurationError naming every invalid one."""
        problems: list[str] = []
        now = datetime.now(UTC)
        try:
            cluster = KafkaCluster.of(cluster)
        except ConfigurationError as error:
            problems.append(str(error))
        names = (topics,) if isinstance(topics, str) else tuple(topics or ())
        compiled: re.Pattern[str] | None = None
        if (topics is None) == (pattern is None):
            problems.append("topics, pattern: give exactly one of them")
        elif pattern is None:
            problems.extend(_topic_problems(names))
        else:
            try:
                compiled = re.compile(pattern)
            except (re.error, TypeError) as error:
                problems.append(f"pattern: {pattern!r} is not a regular expression ({error})")
        problems.extend(start_problems(start, now))
        problems.extend(end_problems(end, now))
        for argument, value in (("start", start), ("end", end)):
            if isinstance(value, Mapping) and names:
                unread = sorted(str(topic) for topic in value if topic not in names)
                if unread:
                    problems.append(f"{argument}: names topics that are not read: {', '.join(unread)}")
        if reset not in tuple(Reset):
            problems.append(f"reset: {reset!r} is none of {', '.join(Reset)}")
        if group_id is not None and (not isinstance(group_id, str) or not group_id):
            problems.append("group_id: must be text, or left out for the job's name")
        chosen = (*COLUMNS, HEADERS) if include_headers else COLUMNS
        if columns is not None:
            chosen = tuple(columns) if isinstance(columns, Sequence) and not isinstance(columns, str) else ()
            problems.extend(_column_problems(chosen, include_headers=include_headers))
        if min_partitions is not None and not (_positive(min_partitions, whole=True) and min_partitions <= MOST_RANGES):
            problems.append(f"min_partitions: must be a whole number from 1 to {MOST_RANGES}, or left out")
        if max_offsets_per_checkpoint is not None and not _positive(max_offsets_per_checkpoint, whole=True):
            problems.append("max_offsets_per_checkpoint: must be a whole number from 1, or left out")
        if max_rate_per_partition is not None and not _positive(max_rate_per_partition):
            problems.append("max_rate_per_partition: must be a number of records per second above 0, or left out")
        if adaptive not in (True, False):
            problems.append(f"adaptive: {adaptive!r} is neither True nor False")
        interval = timedelta()
        try:
            interval = as_duration(discovery_interval)
            if interval < timedelta(milliseconds=100):
                problems.append("discovery_interval: must be at least 100ms")
        except (ValueError, TypeError) as error:
            problems.append(f"discovery_interval: {error}")
        try:
            ParticipantName(name)
        except (TypeError, ValueError) as error:
            problems.append(f"name: {error}")
        if problems:
            raise ConfigurationError(
                "This Kafka source cannot be used; nothing was started. Change these:\n"
                + "\n".join(f"  - {problem}" for problem in problems)
            )
        return cls(
            cluster=KafkaCluster.of(cluster),
            topics=tuple(sorted(set(names))),
            pattern=compiled,
            start=start,
            reset=Reset(reset),
            end=end,
            group_id=group_id,
            columns=chosen,
            min_partitions=min_partitions,
            max_offsets=max_offsets_per_checkpoint,
            max_rate=max_rate_per_partition,
            adaptive=adaptive,
            discovery_interval=interval,
            mirror_offsets=mirror_offsets,
            name=ParticipantName(name),
        )

    def limits(self, *, interval: timedelta | None, checkpoint_timeout: timedelta) -> Limits:
        """Return the limits of the job's first checkpoint. ``interval``: None if checkpoints run only on request."""
        seconds = None if interval is None else interval.total_seconds()
        return Limits(
            offsets=self.max_offsets,
            rate=None if self.max_rate is None else RateLimit(self.max_rate, interval=seconds or 0.0),
            sizing=first_sizing(seconds, checkpoint_timeout.total_seconds()) if self.adaptive else None,
        )


def _topic_problems(names: Sequence[object]) -> Iterator[str]:
    if not names:
        yield "topics: name at least one"
    for name in names:
        if not isinstance(name, str) or not _TOPIC.fullmatch(name) or name in (".", ".."):
            yield f"topics: {name!r} is not a topic name (1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-')"


def _column_problems(columns: Sequence[object], *, include_headers: bool) -> Iterator[str]:
    known = (*COLUMNS, HEADERS)
    if not columns:
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
