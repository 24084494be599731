"""Answers of the brokers that a commit by the same process need not ask for again: none is older than a second."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from onceward.connections.codes import ErrorCode
from onceward.connections.topics import TopicFacts
from onceward.protocol.committing import PreCommitted
from onceward.sinks.kafka.control.committables import KafkaCommittable
from onceward.sinks.kafka.control.control_plane import ControlPlane, Located, NoAnswer, Operation, together
from onceward.sinks.kafka.control.parts import Parts, reading_parts
from onceward.sinks.kafka.control.transactions import Code, Listed, Transactions

__all__ = ["KafkaPreCommitted", "KnownPlaces", "Lately"]

T = TypeVar("T")

_FRESH_S = 1.0
"""A decision takes milliseconds. After a longer wait, brokers may have failed over."""
_REUSED_S = 0.5
"""Less than that, so that an answer is still fresh at the commit."""
_PLACES_S = 5.0
"""Coordinators move when brokers fail, which is rare, and a refused request finds the new one."""


class Lately(Generic[T]):
    """One answer, reused for a while. Used by one thread."""

    def __init__(self) -> None:
        self._last: tuple[float, T] | None = None

    def at(self, now: float) -> tuple[float, T] | None:
        """Return when it was asked, in monotonic seconds, and the answer; None if it must be asked."""
        return self._last if self._last is not None and now - self._last[0] <= _REUSED_S else None

    def learn(self, asked: float, answer: T) -> None:
        self._last = asked, answer


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
    """When the oldest answer was asked, in monotonic seconds."""
    parts: Mapping[str, Parts]
    """By transactional id."""
    highest: Code
    """The highest version of EndTxn."""


@dataclass(kw_only=True, eq=False)
class KafkaPreCommitted(PreCommitted):
    """What was pre-committed, and where coordinators and leaders were then."""

    handles: Sequence[KafkaCommittable]
    """The committables, read."""
    control: ControlPlane
    asked: float
    """When the oldest answer was asked, in monotonic seconds."""
    located: Mapping[str, Located]
    topics: Mapping[str, TopicFacts]
    listed: Listed | None = None
    """The job's open transactions; None: not asked."""
    ahead: LookedAhead | None = None
    """What was asked beside the claim."""

    def cover(self, handles: Iterable[KafkaCommittable], now: float) -> bool:
        """Return whether the answers are fresh and hold all that a commit of ``handles`` needs."""
        return now - self.asked <= _FRESH_S and all(
            (place := self.located.get(handle.transaction.id)) is not None
            and place.code == ErrorCode.NONE
            and handle.topics.keys() <= self.topics.keys()
            for handle in handles
        )

    def looking_ahead(
        self, handles: Sequence[KafkaCommittable], highest: Code | None = None
    ) -> Operation[tuple[dict[int, Parts], Code]]:
        """Ask what a commit of ``handles`` must know besides: what the partitions hold, and the highest version of
        EndTxn, unless it is given. Does not fail."""
        reading = reading_parts(self.control, handles, self.topics)
        if highest is not None:
            return (yield from reading), highest
        finding = Transactions(self.control).finding_highest_end_txn(handle.transaction for handle in handles)
        return (yield from together(reading, finding))

    def look_ahead(self, commit: Operation[Code], asked: float, versions: Lately[Code]) -> Code:
        """Run ``commit``, the last request of a claim, and ask beside it what a commit of all handles must know. Return
        its result.

        ``asked``: now. ``versions``: the last answer about the highest version of EndTxn."""
        known = versions.at(asked)
        looking = self.looking_ahead(self.handles, None if known is None else known[1])
        code, (parts, highest) = self.control.run(together(commit, looking))
        if known is not None:
            asked = known[0]
        elif not isinstance(highest, NoAnswer):
            versions.learn(asked, highest)
        named = {handle.transaction.id: parts[handle.slot] for handle in self.handles}
        self.ahead = LookedAhead(asked=asked, parts=named, highest=highest)
        return code

    def looked_ahead(self, handles: Sequence[KafkaCommittable], now: float) -> tuple[Mapping[int, Parts], Code] | None:
        """Return the parts by slot and the highest version of EndTxn, if they were asked a moment ago."""
        ahead = self.ahead
        if ahead is None or now - ahead.asked > _FRESH_S:
            return None
        if not all(handle.transaction.id in ahead.parts for handle in handles):
            return None
        return {handle.slot: ahead.parts[handle.transaction.id] for handle in handles}, ahead.highest
