"""Known outcomes, until no partition holds an open part any more: readers then see them, or get past them
(docs/protocol.md#skipped-markers)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from onceward.connections.topics import TopicFacts
from onceward.protocol.values import Outcome, Settlement
from onceward.sinks.kafka.control.clock import Clock
from onceward.sinks.kafka.control.committables import KafkaCommittable
from onceward.sinks.kafka.control.control_plane import ControlPlane
from onceward.sinks.kafka.control.finishing import Finishing
from onceward.sinks.kafka.control.hanging import Hanging, hangs, is_over
from onceward.sinks.kafka.control.markers import LogEnding, read_endings
from onceward.sinks.kafka.control.parts import Parts, reading_parts
from onceward.sinks.kafka.control.transactions import Transactions

__all__ = ["KnownOutcomes"]

_MARKERS_S = 1.0
"""Markers take milliseconds. If one takes longer, the coordinator is asked whether it still writes it."""


@dataclass(kw_only=True)
class _Known:
    handle: KafkaCommittable
    outcome: Outcome
    evidence: str
    since: float
    """On the monotonic clock."""
    finishing: Finishing

    def settled(self, outcome: Outcome | None = None, evidence: str = "") -> Settlement:
        return Settlement(slot=self.handle.slot, outcome=outcome or self.outcome, evidence=evidence or self.evidence)


class KnownOutcomes:
    """Those of one call of commit, by slot."""

    def __init__(self, control: ControlPlane, clock: Clock) -> None:
        self._control = control
        self._clock = clock
        self._known: dict[int, _Known] = {}

    def __bool__(self) -> bool:
        return bool(self._known)

    def add(self, handle: KafkaCommittable, outcome: Outcome, evidence: str) -> None:
        """``outcome``: committed or lost."""
        self._known[handle.slot] = _Known(
            handle=handle,
            outcome=outcome,
            evidence=evidence,
            since=self._clock.monotonic(),
            finishing=Finishing(self._control, self._clock),
        )

    def look(
        self, topics: Mapping[str, TopicFacts] | None, give_up: Callable[[], bool]
    ) -> tuple[dict[int, Settlement], Mapping[str, TopicFacts] | None]:
        """Return what is settled now, by slot, and ``topics``, which were described lately; None if a leader did not
        answer. Writes the markers that the brokers have skipped, unless ``give_up()``."""
        settled: dict[int, Settlement] = {}
        if not self._known:
            return settled, topics
        handles = [known.handle for known in self._known.values()]
        parts = self._control.run(reading_parts(self._control, handles, topics))
        if any(found.unknown for found in parts.values()):
            topics = None
        late: list[tuple[_Known, Parts]] = []
        for known in self._known.values():
            found = parts[known.handle.slot]
            is_late = self._clock.monotonic() - known.since >= _MARKERS_S
            if found.open and is_late:
                late.append((known, found))
            elif not (found.open or found.unknown) and (one := self._closed(known, is_late=is_late)) is not None:
                settled[one.slot] = one
        if late and not give_up():
            settled |= self._finish(late)
        for slot in settled:
            del self._known[slot]
        return settled, topics

    def _closed(self, known: _Known, *, is_late: bool) -> Settlement | None:
        """Settle what no partition holds open any more; None to look again.

        A late request of the producer may reopen a transaction whose markers are skipped, until EndTxn version 5 under
        the same epoch. If that one times out, it aborts what is committed. So a commit that was open for long is
        settled by what its markers say.
        """
        known.finishing.shown(known.handle.transaction.id)
        if known.outcome is not Outcome.COMMITTED or not is_late:
            return known.settled()
        log = read_endings(self._control, [known.handle])[known.handle.transaction.id]
        if log.ending is LogEnding.AGAIN:
            return None
        if not log.aborted:
            return known.settled()
        outcome = Outcome.LOST if log.ending is LogEnding.ABORTED else Outcome.IN_DOUBT
        what = "all of it" if outcome is Outcome.LOST else "a part of it"
        return known.settled(
            outcome, f"{known.evidence}; but {what} was aborted before its markers were written: {log.detail}"
        )

    def _finish(self, late: Sequence[tuple[_Known, Parts]]) -> dict[int, Settlement]:
        """Write the markers of ends that the coordinator has reported as complete, although ``late`` shows parts that
        are open. Return what cannot be finished."""
        settled: dict[int, Settlement] = {}
        views = Transactions(self._control).describe([known.handle.transaction.id for known, _ in late])
        for known, found in late:
            handle, transaction = known.handle, known.handle.transaction
            view = views[transaction.id]
            if not is_over(transaction.producer_id, transaction.epoch, view, ended=True):
                known.finishing.wait()
                continue
            hanging = Hanging(
                id=transaction.id,
                producer_id=transaction.producer_id,
                places=found.open,
                group=transaction.id,
            )
            why = known.finishing.look(hanging, view, commit=known.outcome is Outcome.COMMITTED)
            if why is not None:
                evidence = hangs(self._control, known.evidence, hanging, why)
                settled[handle.slot] = known.settled(Outcome.IN_DOUBT, evidence)
        return settled
