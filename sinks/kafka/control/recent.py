"""Answers of a pre-commit that a commit by the same process need not ask for again."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from onceward.connections.codes import ErrorCode
from onceward.coordinator.protocol.values import CheckpointId
from onceward.sinks.kafka.control.brokers import TopicFacts
from onceward.sinks.kafka.control.committables import KafkaCommittable
from onceward.sinks.kafka.control.control_plane import ControlPlane, Located, Waves
from onceward.sinks.kafka.control.parts import Parts, reading_parts
from onceward.sinks.kafka.control.transactions import Code, Transactions

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
class LookedAhead:
    """What a commit must know of the brokers just before it."""

    asked: float
    """When the requests were sent, in monotonic seconds."""
    parts: Mapping[str, Parts]
    """By transactional id."""
    highest: Code
    """The highest version of EndTxn."""


@dataclass(frozen=True, kw_only=True)
class RecentAnswers:
    """Where coordinators and leaders were a moment ago. If they have moved, brokers refuse, and a retry asks again."""

    control: ControlPlane
    asked: float
    """When the requests were sent, in monotonic seconds."""
    located: Mapping[str, Located]
    topics: Mapping[str, TopicFacts]
    handles: Sequence[KafkaCommittable] = ()
    """What was pre-committed."""
    ahead: LookedAhead | None = None

    def cover(self, handles: Iterable[KafkaCommittable], now: float) -> bool:
        """Return whether the answers are fresh and hold all that a commit of ``handles`` needs."""
        return now - self.asked <= _FRESH_S and all(
            (place := self.located.get(handle.transaction.id)) is not None
            and place.code == ErrorCode.NONE
            and handle.topics.keys() <= self.topics.keys()
            for handle in handles
        )

    def of(self, checkpoint: CheckpointId) -> bool:
        """Whether they are of this checkpoint's pre-commit."""
        return any(handle.checkpoint == checkpoint for handle in self.handles)

    def looking_ahead(self, handles: Sequence[KafkaCommittable]) -> tuple[Waves[dict[int, Parts]], Waves[Code]]:
        """What a commit of ``handles`` must ask besides, as operations; they do not fail."""
        return (
            reading_parts(self.control, handles, self.topics),
            Transactions(self.control).finding_highest_end_txn(handle.transaction for handle in handles),
        )

    def with_parts(self, parts: Mapping[int, Parts], highest: Code, asked: float) -> "RecentAnswers":
        """Return these answers with those to :meth:`looking_ahead` about its own handles."""
        named = {handle.transaction.id: parts[handle.slot] for handle in self.handles}
        return replace(self, ahead=LookedAhead(asked=asked, parts=named, highest=highest))

    def looked_ahead(self, handles: Sequence[KafkaCommittable], now: float) -> tuple[Mapping[int, Parts], Code] | None:
        """Return the parts by slot and the highest version of EndTxn, if they were asked a moment ago."""
        ahead = self.ahead
        if ahead is None or now - ahead.asked > _FRESH_S:
            return None
        if not all(handle.transaction.id in ahead.parts for handle in handles):
            return None
        return {handle.slot: ahead.parts[handle.transaction.id] for handle in handles}, ahead.highest
