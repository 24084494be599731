"""The options of ``format("onceward")``: those of Spark's Kafka source, by their names. Pure.

Spark passes options as text. All problems are reported in one message, which never quotes the value of a setting that
may be secret.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any, Final, TypeVar

from onceward.common.errors import ConfigurationError
from onceward.connections.cluster import KafkaCluster
from onceward.protocol.settings import as_duration
from onceward.sources.kafka.driver.splitting import MOST_RANGES
from onceward.sources.kafka.executor.columns import COLUMNS, HEADERS
from onceward.sources.kafka.executor.reader import OWNED_SETTINGS
from onceward.sources.kafka.positions import Partition

__all__ = ["EARLIEST", "LATEST", "OPTIONS", "REFUSED", "Bound", "Mode", "ReadOptions"]

_T = TypeVar("_T")

EARLIEST: Final = -2
LATEST: Final = -1
"""Kafka's own numbers for these two, in JSON of offsets as in Spark's Kafka source."""

_SERVERS = "kafka.bootstrap.servers"
_MAX = 2**63 - 1


class Mode(StrEnum):
    STREAM = "readStream"
    BATCH = "read"


_BOTH = frozenset(Mode)
_STREAM, _BATCH = frozenset({Mode.STREAM}), frozenset({Mode.BATCH})

OPTIONS: Final[Mapping[str, frozenset[Mode]]] = {
    _SERVERS: _BOTH,
    "subscribe": _BOTH,
    "subscribePattern": _BOTH,
    "assign": _BOTH,
    "startingOffsets": _BOTH,
    "startingTimestamp": _BOTH,
    "startingOffsetsByTimestamp": _BOTH,
    "startingOffsetsByTimestampStrategy": _BOTH,
    "endingOffsets": _BATCH,
    "endingTimestamp": _BATCH,
    "endingOffsetsByTimestamp": _BATCH,
    "maxOffsetsPerTrigger": _STREAM,
    "minOffsetsPerTrigger": _STREAM,
    "maxTriggerDelay": _STREAM,
    "minPartitions": _BOTH,
    "includeHeaders": _BOTH,
    "failOnDataLoss": _BOTH,
    "groupIdPrefix": _BOTH,
}
"""The options besides ``kafka.*``, and where each is allowed."""

_OWN_RETRIES = "the reader retries by itself and fails after 60 s without progress"
_BINARY = "keys and values are binary: convert the columns"
_JKS = "Java key stores are not read: use PEM files, kafka.ssl.ca.location, .certificate.location and .key.location"

REFUSED: Final[Mapping[str, str]] = {
    "path": "name the topics with subscribe, subscribePattern or assign",
    "maxRecordsPerPartition": "use minPartitions, or maxOffsetsPerTrigger",
    "kafkaConsumer.pollTimeoutMs": _OWN_RETRIES,
    "fetchOffset.numRetries": _OWN_RETRIES,
    "fetchOffset.retryIntervalMs": _OWN_RETRIES,
    "kafka.group.id": "no group is joined, no offset is committed; groupIdPrefix is the group named to brokers",
    "kafka.auto.offset.reset": "use startingOffsets; offsets that are gone fail the query",
    "kafka.key.deserializer": _BINARY,
    "kafka.value.deserializer": _BINARY,
    "kafka.interceptor.classes": "the reader is not Java",
    "kafka.sasl.jaas.config": "use kafka.sasl.username and kafka.sasl.password, each as env:NAME or file:/path",
    **{
        f"kafka.ssl.{store}.{what}": _JKS
        for store in ("truststore", "keystore")
        for what in ("location", "password", "type")
    },
}
"""Options of Spark's Kafka source that mean nothing here, and what to do instead."""


@dataclass(frozen=True, kw_only=True)
class Bound:
    """Where to begin or to end."""

    option: str
    """The option that said so, for messages."""
    at: int | Mapping[Partition, int]
    """An offset, EARLIEST or LATEST; or a time in ms since 1970. One for all partitions, or one for each."""
    times: bool = False
    or_latest: bool = False
    """A partition without a record at or after the time: LATEST instead of an error."""


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """Valid options."""

    cluster: KafkaCluster
    topics: tuple[str, ...]
    """Empty if ``pattern`` is given."""
    pattern: re.Pattern[str] | None
    assigned: frozenset[Partition] | None
    start: Bound
    end: Bound
    max_offsets: int | None
    """Per trigger; None = no limit."""
    min_offsets: int | None
    """A trigger waits for this many, for at most ``max_delay``."""
    max_delay: timedelta
    min_partitions: int | None
    columns: tuple[str, ...]
    group_id: str

    @classmethod
    def parse(cls, options: Mapping[str, str], mode: Mode | None = None) -> "ReadOptions":
        """Read options as Spark passes them. ``mode``: None if not known yet.

        Raises ConfigurationError that lists every problem.
        """
        parsing = _Parsing(options, mode)
        found = parsing.read()
        if found is None or parsing.problems:
            raise ConfigurationError(
                'This format("onceward") cannot be read; nothing was started. Change these:\n'
                + "\n".join(f"  - {problem}" for problem in parsing.problems)
            )
        return found


class _Parsing:
    def __init__(self, options: Mapping[str, str], mode: Mode | None) -> None:
        self._given = {name.lower(): text for name, text in options.items()}
        self._mode = mode
        self.problems: list[str] = []

    def read(self) -> ReadOptions | None:
        self._check_names()
        cluster = self._cluster()
        topics, pattern, assigned = self._subscription()
        of = None if pattern is not None else topics
        streams = self._mode is Mode.STREAM
        start = self._bound("starting", of, EARLIEST if not streams else LATEST, forbidden=None)
        end = self._bound("ending", of, LATEST, forbidden=EARLIEST)
        if not self._truth("failOnDataLoss", True):
            self.problems.append(
                "failOnDataLoss: false would skip input that is gone without a trace; leave it out. A query that fails "
                "for lost input names it; decide, then start a query with a new checkpointLocation and startingOffsets"
            )
        least, most = self._count("minOffsetsPerTrigger"), self._count("maxOffsetsPerTrigger")
        if least is not None and most is not None and least > most:
            self.problems.append(f"minOffsetsPerTrigger: {least} is above maxOffsetsPerTrigger, {most}")
        headers = self._truth("includeHeaders", False)
        max_delay = self._parsed("maxTriggerDelay", _delay, timedelta(minutes=15))
        min_partitions = self._count("minPartitions", most=MOST_RANGES)
        if cluster is None:
            return None
        return ReadOptions(
            cluster=cluster,
            topics=topics,
            pattern=pattern,
            assigned=assigned,
            start=start,
            end=end,
            max_offsets=most,
            min_offsets=least,
            max_delay=max_delay,
            min_partitions=min_partitions,
            columns=(*COLUMNS, HEADERS) if headers else COLUMNS,
            group_id=self._given.get("groupidprefix") or "onceward",
        )

    def _check_names(self) -> None:
        known = {name.lower(): name for name in OPTIONS}
        refused = {name.lower(): (name, why) for name, why in REFUSED.items()}
        unknown = []
        for name in self._given:
            if name in refused:
                self.problems.append(": ".join(refused[name]))
            elif name in known and self._mode is not None and self._mode not in OPTIONS[known[name]]:
                self.problems.append(f"{known[name]}: has no meaning for {self._mode}")
            elif name not in known and not name.startswith("kafka."):
                unknown.append(name)
        if unknown:
            self.problems.append(f"{', '.join(sorted(unknown))}: unknown; known are kafka.* and {', '.join(OPTIONS)}")

    def _cluster(self) -> KafkaCluster | None:
        config = {
            name.removeprefix("kafka."): text
            for name, text in self._given.items()
            if name.startswith("kafka.") and name != _SERVERS and name not in {one.lower() for one in REFUSED}
        }
        for key, only in OWNED_SETTINGS.items():
            if config.get(key, only).lower() != only:
                self.problems.append(f"kafka.{key}: must be {only}; only committed records are read, each once")
        try:
            return KafkaCluster(self._given.get(_SERVERS, ""), config=config)
        except ConfigurationError as error:
            self.problems += (line.removeprefix("  - ") for line in str(error).splitlines()[1:])
            return None

    def _subscription(self) -> tuple[tuple[str, ...], re.Pattern[str] | None, frozenset[Partition] | None]:
        given = [name for name in ("subscribe", "subscribePattern", "assign") if name.lower() in self._given]
        if len(given) != 1:
            self.problems.append("subscribe, subscribePattern, assign: give exactly one of them")
            return (), None, None
        match given[0]:
            case "subscribe":
                topics = {name for part in self._given["subscribe"].split(",") if (name := part.strip())}
                if not topics:
                    self.problems.append("subscribe: names no topic")
                return tuple(sorted(topics)), None, None
            case "subscribePattern":
                return (), self._parsed("subscribePattern", re.compile, None), None
            case _:
                assigned = self._parsed("assign", _assigned, frozenset[Partition]())
                return tuple(sorted({p.topic for p in assigned})), None, assigned

    def _bound(self, side: str, topics: Collection[str] | None, default: int, *, forbidden: int | None) -> Bound:
        """Read one side. As in Spark, a timestamp for all goes first, then timestamps by partition, then offsets."""
        one, many, offsets = f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"
        strategy = self._given.get("startingoffsetsbytimestampstrategy", "error").lower()
        if strategy not in ("error", "latest"):
            self.problems.append(f"startingOffsetsByTimestampStrategy: {strategy!r} is none of error, latest")
        or_latest = side == "ending" or strategy == "latest"
        if one.lower() in self._given:
            return Bound(option=one, at=self._count(one, least=0) or 0, times=True, or_latest=or_latest)
        if many.lower() in self._given:
            return Bound(option=many, at=self._by_partition(many, topics, 0), times=True, or_latest=or_latest)
        text = self._given.get(offsets.lower())
        words = {"earliest": EARLIEST, "latest": LATEST}
        if text is None:
            return Bound(option=offsets, at=default)
        at: int | Mapping[Partition, int] | None = words.get(text.strip().lower())
        if at is None:
            at = self._by_partition(offsets, topics, EARLIEST)
        if forbidden is not None and (at == forbidden or (isinstance(at, Mapping) and forbidden in at.values())):
            self.problems.append(f"{offsets}: cannot be earliest ({EARLIEST})")
        return Bound(option=offsets, at=at)

    def _by_partition(self, name: str, topics: Collection[str] | None, least: int) -> Mapping[Partition, int]:
        found = self._parsed(name, lambda text: _by_partition(text, least), dict[Partition, int]())
        unread = sorted({p.topic for p in found} - set(topics)) if topics is not None else []
        if unread:
            self.problems.append(f"{name}: names topics that are not read: {', '.join(unread)}")
        return found

    def _count(self, name: str, *, least: int = 1, most: int = _MAX) -> int | None:
        text = self._given.get(name.lower())
        if text is None:
            return None
        if not re.fullmatch(r"[0-9]+", text.strip()) or not least <= int(text) <= most:
            self.problems.append(f"{name}: {text!r} is not a whole number from {least} to {most}")
            return None
        return int(text)

    def _truth(self, name: str, default: bool) -> bool:
        text = self._given.get(name.lower(), str(default)).strip().lower()
        if text not in ("true", "false"):
            self.problems.append(f"{name}: {text!r} is neither true nor false")
        return text == "true" if text in ("true", "false") else default

    def _parsed(self, name: str, parse: Callable[[str], _T], default: _T) -> _T:
        text = self._given.get(name.lower())
        if text is None:
            return default
        try:
            return parse(text)
        except (ValueError, re.error) as error:
            self.problems.append(f"{name}: {error}")
            return default


def _delay(text: str) -> timedelta:
    """Parse a duration; ``m`` are minutes, as in Spark."""
    return as_duration(re.sub(r"(?<=[0-9])\s*m$", "min", text.strip()))


def _assigned(text: str) -> frozenset[Partition]:
    found = frozenset(
        Partition(topic, _whole(number, 0))
        for topic, numbers in _object(text).items()
        for number in (numbers if isinstance(numbers, list) else _wrong(text))
    )
    return found or _wrong(text)


def _by_partition(text: str, least: int) -> dict[Partition, int]:
    found = {
        Partition(topic, _whole(int(number) if number.isdecimal() else number, 0)): _whole(offset, least)
        for topic, numbers in _object(text).items()
        for number, offset in (numbers.items() if isinstance(numbers, dict) else _wrong(text))
    }
    return found or _wrong(text)


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    return found if isinstance(found, dict) else _wrong(text)


def _whole(value: object, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MAX:
        raise ValueError(f"{value!r} is not a whole number from {least}")
    return value


def _wrong(text: str) -> Any:
    raise ValueError(f'{text!r} is not JSON such as {{"orders": {{"0": 23}}}}; for assign {{"orders": [0, 1]}}')
