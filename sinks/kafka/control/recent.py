"""Answers of a pre-commit that a commit by the same process need not ask for again."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from onceward.connections.codes import ErrorCode
from onceward.sinks.kafka.control.brokers import TopicFacts
from onceward.sinks.kafka.control.committables import KafkaCommittable
from onceward.sinks.kafka.control.control_plane import ControlPlane, Located

__all__ = ["KnownPlaces", "RecentAnswers"]

_FRESH_S = 1.0
"""A decision takes milliseconds. After a longer wait, brokers may have failed over."""


_PLACES_S = 5.0
"""Coordinators move when brokers fail, which is rare, and a refused request finds the new one."""


class KnownPlaces:
    """Where the coordinators of reused ids are, asked again every few seconds. If one has moved, its former broker
    refuses, and a retry asks for the new one. Used by one thread."""

    def __init__(self) -> None:
        self._asked = 0.0
        self._located: dict[str, Located] = {}

    def of(self, ids: Collection[str], now: float) -> Mapping[str, Located] | None:
        """Return the places of ``ids``, or None if they must be asked."""
        if now - self._asked > _PLACES_S:
            self._located = {}
            return None
        return {name: self._located[name] for name in ids} if self._located.keys() >= set(ids) else None

    def learn(self, located: Mapping[str, Located], asked: float) -> None:
        """Keep what was asked at ``asked``."""
        if not self._located:
            self._asked = asked
        self._located.update(located)

    def forget(self) -> None:
        """Forget all: a broker has refused."""
        self._located = {}


@dataclass(frozen=True, kw_only=True)
class RecentAnswers:
    """Where coordinators and leaders were a moment ago. If they have moved, brokers refuse, and a retry asks again."""

    control: ControlPlane
    asked: float
    """When the requests were sent, in monotonic seconds."""
    located: Mapping[str, Located]
    topics: Mapping[str, TopicFacts]

    def cover(self, handles: Iterable[KafkaCommittable], now: float) -> bool:
        """Return whether the answers are fresh and hold all that a commit of ``handles`` needs."""
        return now - self.asked <= _FRESH_S and all(
            (place := self.located.get(handle.transaction.id)) is not None
            and place.code == ErrorCode.NONE
            and handle.topics.keys() <= self.topics.keys()
            for handle in handles
        )
