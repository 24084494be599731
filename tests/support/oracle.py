"""The oracle of facts: what is durable so far, kept independently of the core, and what must not become durable.

Every suite that watches facts uses it. Some watch more than facts, and extend it.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple, Self

from onceward.protocol import facts
from onceward.protocol.values import ParticipantName

__all__ = ["History", "Invariant", "Violation"]


class Invariant(StrEnum):
    """What must hold in every state. A counter-example starts with the text."""

    ONE_DECISION = "I5: one decision per checkpoint, durable before the first commit"
    NEVER_CHANGES = "a decision never changes"
    EVERYBODY = "I6: completed only with every participant's acknowledgement of the current generation"
    STALE = "I7: a stale generation's message changes nothing"
    RESTORED = "I10: restored positions are those of the last completed checkpoint"
    IN_ORDER = "n+1 is not completed before n is settled"
    SETTLED = "a completed checkpoint is settled once faults stop"
    TILES = "no record range is skipped or counted twice"
    REMEMBERED = "the coordinator continues with exactly what it has stored"
    CLAIMED = "no checkpoint is committed before the claim names it, and no claim takes the place of a newer one"
    ALONE = "what a driver leaves behind is ended without another one"
    CONTRACT = "a driver that keeps the contract is never refused"


class Violation(NamedTuple):
    """The broken invariant, with one sentence about this case."""

    invariant: StrEnum
    text: str


@dataclass(frozen=True, kw_only=True)
class History:
    """What the facts so far say about one job."""

    generation: int = 0
    burnt: int = 0
    """The highest checkpoint id in use."""
    undecided: int = 0
    """The running checkpoint; 0 for none."""
    last: int = 0
    """The last completed checkpoint; 0 for none."""
    settled: bool = True
    """Whether the last completed checkpoint is settled."""
    lost: frozenset[tuple[ParticipantName, int]] = frozenset()
    """Sinks and slots of the last completed checkpoint that are recorded as lost."""

    def after(self, fact: facts.Fact) -> tuple[Self, Violation | None]:
        """The history with one more fact, and the first rule that the fact breaks."""
        match fact:
            case facts.GenerationGranted(generation=generation):
                return replace(self, generation=generation, burnt=max(self.burnt, fact.first_id)), _broken(
                    (generation > self.generation, Invariant.STALE, f"{generation} granted after {self.generation}"),
                    (
                        not self.undecided,
                        Invariant.ONE_DECISION,
                        f"{self.undecided} is undecided under a new generation",
                    ),
                )
            case facts.CheckpointTriggered(checkpoint=checkpoint):
                return replace(self, burnt=checkpoint, undecided=checkpoint), _broken(
                    *self._takes(checkpoint, fact.base),
                    (not self.lost, Invariant.IN_ORDER, f"{checkpoint} runs before lost records are written again"),
                    (fact.generation == self.generation, Invariant.STALE, f"{checkpoint} is of {fact.generation}"),
                )
            case facts.CheckpointCompleted(checkpoint=checkpoint):
                data = any(snapshot.committables for snapshot in fact.snapshots.values())
                return replace(self, undecided=0, last=checkpoint, settled=fact.settled), _broken(
                    self._decides(checkpoint),
                    (self.settled, Invariant.IN_ORDER, f"{checkpoint} is completed, {self.last} is not settled"),
                    (fact.settled is not data, Invariant.SETTLED, f"{checkpoint} completes as settled: {fact.settled}"),
                )
            case facts.CheckpointAborted(checkpoint=checkpoint) | facts.CheckpointUnchanged(checkpoint=checkpoint):
                return replace(self, undecided=0), _broken(self._decides(checkpoint))
            case facts.CheckpointSettled(checkpoint=checkpoint):
                return replace(self, settled=True), _broken(
                    self._waits(checkpoint),
                    (not self.lost, Invariant.SETTLED, f"{checkpoint} is settled, and {sorted(self.lost)} are lost"),
                )
            case facts.LossRecorded(checkpoint=checkpoint):
                lost = self.lost | {(fact.participant, one.slot) for one in fact.settlements}
                return replace(self, lost=lost), _broken(
                    self._waits(checkpoint),
                    (not self.undecided, Invariant.IN_ORDER, f"{self.undecided} runs while {checkpoint} is replayed"),
                )
            case facts.CheckpointAmended(checkpoint=checkpoint):
                again = {(fact.participant, slot) for slot in fact.slots}
                return replace(self, lost=self.lost - again), _broken(
                    self._waits(checkpoint),
                    (again <= self.lost, Invariant.TILES, f"{sorted(again)} are written again, and were not lost"),
                )
            case facts.LossSkipped(checkpoint=checkpoint):
                skipped = {(fact.participant, one.slot) for one in fact.settlements}
                return replace(self, lost=self.lost - skipped), _broken(
                    (checkpoint == self.last, Invariant.TILES, f"a loss of {checkpoint} is given up after {self.last}")
                )
            case facts.SlotsResolved(checkpoint=checkpoint):
                resolved = {(fact.participant, slot) for slot in fact.slots | fact.settled}
                return replace(self, lost=self.lost - resolved), _broken(self._waits(checkpoint))
            case (
                facts.CheckpointRestored(checkpoint=checkpoint, former=base)
                | facts.InputSkipped(checkpoint=checkpoint, base=base)
            ):
                return replace(self, burnt=checkpoint, last=checkpoint), _broken(
                    *self._takes(checkpoint, base),
                    (self.settled, Invariant.SETTLED, f"{self.last} is left behind unsettled"),
                )
            case _:
                return self, None

    def _takes(self, checkpoint: int, base: int) -> tuple["_Rule", ...]:
        """A checkpoint takes a new id, on the last completed checkpoint."""
        return (
            (
                not self.undecided,
                Invariant.ONE_DECISION,
                f"checkpoint {checkpoint} begins while {self.undecided} is undecided",
            ),
            (checkpoint > self.burnt, Invariant.ONE_DECISION, f"id {checkpoint} is taken again after {self.burnt}"),
            (base == self.last, Invariant.RESTORED, f"checkpoint {checkpoint} builds on {base}, not on {self.last}"),
        )

    def _decides(self, checkpoint: int) -> "_Rule":
        text = f"checkpoint {checkpoint} is decided, and {self.undecided or 'none'} is undecided"
        return checkpoint == self.undecided, Invariant.NEVER_CHANGES, text

    def _waits(self, checkpoint: int) -> "_Rule":
        """Outcomes are about the last completed checkpoint, until it is settled."""
        text = f"an outcome of checkpoint {checkpoint} after that of {self.last}, settled: {self.settled}"
        return checkpoint == self.last and not self.settled, Invariant.NEVER_CHANGES, text


_Rule = tuple[bool, Invariant, str]
"""Whether it holds, its name, and what is wrong if it does not hold."""


def _broken(*rules: _Rule) -> Violation | None:
    return next((Violation(invariant, text) for holds, invariant, text in rules if not holds), None)
