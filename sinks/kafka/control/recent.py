"""Answers of a pre-commit that a commit by the same process need not ask for again."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from onceward.connections.codes import ErrorCode
from onceward.sinks.kafka.control.brokers import TopicFacts
from onceward.sinks.kafka.control.committables import KafkaCommittable
from onceward.sinks.kafka.control.control_plane import ControlPlane, Located

__all__ = ["RecentAnswers"]

_FRESH_S = 1.0
"""A decision takes milliseconds. After a longer wait, brokers may have failed over."""


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
