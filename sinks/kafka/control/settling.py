"""Commits, and retries until every outcome is known (docs/protocol.md#outcomes).

A round asks the partitions whether they still hold their parts, then sends EndTxn for all pending transactions, many at
a time. A transaction that was complete and answered with NONE is committed. The others are investigated: every two
seconds a look combines EndTxn, DescribeTransactions, the receipt and the output's log, until `outcomes` can conclude.
A known outcome is a settlement once no partition holds an open part any more: readers then see it, or get past it.
It keeps no state beyond one call: the committables and the brokers hold all it needs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from onceward.common.killpoints import KillPoint, armed, kill_point
from onceward.connections.topics import TopicFacts
from onceward.protocol.values import Outcome, Settlement
from onceward.sinks.kafka.control.clock import Clock, broker_backoff
from onceward.sinks.kafka.control.committables import KafkaCommittable, elsewhere
from onceward.sinks.kafka.control.control_plane import IN_FLIGHT, ControlPlane, Located, together
from onceward.sinks.kafka.control.finishing import LOOK_INTERVAL_S
from onceward.sinks.kafka.control.known import KnownOutcomes
from onceward.sinks.kafka.control.looking import how_to_finish, judgements
from onceward.sinks.kafka.control.markers import read_endings
from onceward.sinks.kafka.control.outcomes import (
    EndAnswer,
    Judgement,
    Look,
    Proof,
    classify,
    conclude,
    describe_code,
    has_ended,
    judge_torn,
)
from onceward.sinks.kafka.control.parts import Parts, reading_parts
from onceward.sinks.kafka.control.receipts import read_receipts
from onceward.sinks.kafka.control.recent import KafkaPreCommitted
from onceward.sinks.kafka.control.transactions import Code, Transactions
from onceward.sinks.kafka.errors import ControlPlaneError

__all__ = ["Settling"]

_MAY_BE_UNMARKED = frozenset({Proof.LOST, Proof.NOTHING, Proof.UNSTABLE, Proof.OPEN_ELSEWHERE})
"""What is seen of a transaction that timed out, or whose id an interrupted attempt to write markers has used."""


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """What the brokers answer about pending transactions."""

    handles: Sequence[KafkaCommittable]
    parts: Mapping[int, Parts]
    located: Mapping[str, Located]
    highest: Code
    topics: Mapping[str, TopicFacts] | None = None
    """Described a moment ago."""


class Settling:
    """One call of commit."""

    def __init__(
        self,
        control: ControlPlane,
        handles: Sequence[KafkaCommittable],
        clock: Clock,
        give_up: Callable[[], bool],
        recent: KafkaPreCommitted | None = None,
    ) -> None:
        """``give_up``: checked before each further round or wave of requests; once true, nothing more is sent.
        ``recent``: used by the first round while it is fresh."""
        self._control = control
        self._clock = clock
        self._give_up = give_up
        self._recent = recent
        self._pending = {handle.slot: handle for handle in handles}
        self._judgements: dict[int, list[Judgement]] = {handle.slot: [] for handle in handles}
        self._torn_judgements: dict[int, list[Judgement]] = {handle.slot: [] for handle in handles}
        """Apart from the others: both are concluded from consecutive ones."""
        self._known = KnownOutcomes(control, clock)
        self._settled: dict[int, Settlement] = {}
        self._first = True

    def run(self) -> list[Settlement]:
        """Run until every outcome is known or ``give_up()``; return a settlement per known outcome, by slot."""
        backoff = broker_backoff()
        topics: Mapping[str, TopicFacts] | None = None
        while self._pending or self._known:
            doubtful: set[int] = set()
            if asked := self._ask_with_recent() or self._ask():
                torn = self._torn(asked)
                # If a leader is unknown, do not commit: brokers drop a marker that they cannot deliver then.
                ready = [one for one in asked.handles if one.slot not in torn and not asked.parts[one.slot].unknown]
                unproved = self._end(asked, ready)
                self._look(asked, unproved)
                doubtful = torn | unproved.keys()
                topics = asked.topics
            seen, topics = self._known.look(topics, self._give_up)
            self._settled |= seen
            if not (self._pending or self._known) or self._give_up():
                break
            self._clock.wait(LOOK_INTERVAL_S if doubtful & self._pending.keys() else backoff.next())
        return [self._settled[slot] for slot in sorted(self._settled)]

    def _ask(self) -> _Asked | None:
        """Ask all that a round must know; None if the cluster does not answer, or there is nothing to ask."""
        if not self._pending:
            return None
        try:
            missing = elsewhere(self._control, list(self._pending.values()))
        except ControlPlaneError:
            return None
        for slot, evidence in missing.items():
            self._settle(slot, Outcome.IN_DOUBT, evidence)
        handles = list(self._pending.values())
        if not handles:
            return None
        transactions = Transactions(self._control)
        parts, located, highest = self._control.run(
            together(
                reading_parts(self._control, handles),
                transactions.locating(handle.transaction.id for handle in handles),
                transactions.finding_highest_end_txn(handle.transaction for handle in handles),
            )
        )
        return _Asked(handles=handles, parts=parts, located=located, highest=highest)

    def _ask_with_recent(self) -> _Asked | None:
        """Ask only what recent answers do not hold; None if they are too old or incomplete."""
        recent, self._recent = self._recent, None
        handles = list(self._pending.values())
        now = self._clock.monotonic()
        if recent is None or not recent.cover(handles, now):
            return None
        parts, highest = recent.looked_ahead(handles, now) or self._control.run(recent.looking_ahead(handles))
        return _Asked(handles=handles, parts=parts, located=recent.located, highest=highest, topics=recent.topics)

    def _torn(self, asked: _Asked) -> set[int]:
        """Return the slots that must not be committed now: a partition has lost its part, and the transaction is not
        known to have ended. Found open twice, it is aborted: then no record of the slot is visible, and the whole slot
        can be written again. Found neither open nor ended twice, it is no longer there, and EndTxn is safe."""
        control, parts = self._control, asked.parts
        suspects = {handle.transaction.id: handle for handle in asked.handles if parts[handle.slot].gone}
        if not suspects:
            return set()
        transactions = Transactions(control)
        torn: set[int] = set()
        views = transactions.describe(suspects)
        # The log is costly to read. If the transaction has ended, EndTxn and the look after it show how.
        unclear = {name: one for name, one in suspects.items() if not has_ended(one.transaction, views[name])}
        receipts = read_receipts(control, {name: handle.token for name, handle in unclear.items()})
        endings = read_endings(control, unclear.values())
        for name, handle in unclear.items():
            look = Look(end=None, view=views[name], receipt=receipts[name], log=endings[name])
            judgement = judge_torn(handle.transaction, look, parts[handle.slot].gone)
            if judgement is None:
                continue
            seen = self._torn_judgements[handle.slot]
            seen.append(judgement)
            twice = len(seen) >= 2 and seen[-2].proof is judgement.proof
            if twice and judgement.proof is Proof.NOTHING:
                continue
            torn.add(handle.slot)
            if twice and judgement.proof is Proof.TORN and not self._give_up():
                code = transactions.end([handle.transaction], commit=False)[name]
                if classify(code) is EndAnswer.DONE:
                    evidence = f"{judgement.evidence}; seen twice, the rest is aborted"
                    self._know(handle.slot, Outcome.LOST, evidence)
        return torn

    def _end(self, asked: _Asked, handles: Sequence[KafkaCommittable]) -> dict[int, Code]:
        """Send one EndTxn each. Settles complete commits; returns the answers that prove too little."""
        transactions = Transactions(self._control)
        by_id = {handle.transaction.id: handle for handle in handles}
        ordered = [handle.transaction for handle in sorted(handles, key=lambda handle: handle.slot)]
        doubtful: dict[int, Code] = {}
        sent = 0
        while sent < len(ordered) and not (sent and self._give_up()):
            # Send the first one alone if a test wants to stop the process between two ends.
            alone = not sent and self._first and armed(KillPoint.DRIVER_BETWEEN_END_TXN)
            wave = ordered[sent : sent + (1 if alone else IN_FLIGHT)]
            known = None if sent else asked.highest  # it may change while many waves are sent
            sent += len(wave)
            for name, code in transactions.end(wave, commit=True, located=asked.located, highest=known).items():
                handle = by_id[name]
                match classify(code):
                    case EndAnswer.DONE if asked.parts[handle.slot].whole:
                        evidence = f"EndTxn version {handle.transaction.version} answered {describe_code(code)}"
                        self._know(handle.slot, Outcome.COMMITTED, evidence)
                    case EndAnswer.DONE | EndAnswer.DOUBT:
                        doubtful[handle.slot] = code
                    case EndAnswer.AGAIN:
                        pass
            if self._first and sent < len(ordered):
                kill_point(KillPoint.DRIVER_BETWEEN_END_TXN)
            self._first = False
        return doubtful

    def _look(self, asked: _Asked, doubtful: Mapping[int, Code]) -> None:
        if not doubtful or self._give_up():
            return
        control = self._control
        for slot, judgement in judgements(control, [self._pending[slot] for slot in doubtful], doubtful).items():
            seen = self._judgements[slot]
            seen.append(judgement)
            unmarked = bool(asked.parts[slot].open)
            if [judged.proof for judged in seen[-2:]] == [Proof.OPEN_ELSEWHERE] * 2 and not unmarked:
                # The other transaction hides our receipt. Fenced once per look: 51 means that the abort is running.
                # Required twice, because a stale view of an earlier transaction must not make us fence our own.
                Transactions(control).fence([self._pending[slot].transaction.id])
            concluded = conclude(seen)
            if unmarked and len(seen) >= 2 and {judged.proof for judged in seen[-2:]} <= _MAY_BE_UNMARKED:
                found = how_to_finish(control, self._pending[slot], asked.parts[slot], judgement.evidence)
                concluded = found or concluded
            if concluded is not None:
                self._know(slot, *concluded)

    def _know(self, slot: int, outcome: Outcome, evidence: str) -> None:
        """Note an outcome. It is settled once readers see it; one in doubt, at once."""
        if outcome is Outcome.IN_DOUBT:
            self._settle(slot, outcome, evidence)
        else:
            self._known.add(self._pending.pop(slot), outcome, evidence)

    def _settle(self, slot: int, outcome: Outcome, evidence: str) -> None:
        self._pending.pop(slot, None)
        self._settled[slot] = Settlement(slot=slot, outcome=outcome, evidence=evidence)
