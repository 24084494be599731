"""Looks at transactions: what the brokers show of each, judged by :mod:`outcomes`. Changes nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from onceward.protocol.values import Outcome
from onceward.sinks.kafka.control.committables import KafkaCommittable
from onceward.sinks.kafka.control.control_plane import ControlPlane
from onceward.sinks.kafka.control.hanging import is_over
from onceward.sinks.kafka.control.markers import LogEnding, read_endings
from onceward.sinks.kafka.control.outcomes import Judgement, Look, judge, needs_log
from onceward.sinks.kafka.control.parts import Parts
from onceward.sinks.kafka.control.receipts import read_receipts
from onceward.sinks.kafka.control.transactions import Code, Transactions

__all__ = ["how_to_finish", "judgements"]


def judgements(
    control: ControlPlane, handles: Sequence[KafkaCommittable], asked: Mapping[int, Code]
) -> dict[int, Judgement]:
    """Judge each transaction once, by slot, changing nothing. `asked`: the preceding answers to EndTxn, if sent."""
    if not handles:
        return {}
    by_slot = {handle.slot: handle for handle in handles}
    tokens = {handle.transaction.id: handle.token for handle in handles}
    views = Transactions(control).describe(tokens)
    receipts = read_receipts(control, tokens)
    looks = {
        slot: Look(end=asked.get(slot), view=views[handle.transaction.id], receipt=receipts[handle.transaction.id])
        for slot, handle in by_slot.items()
    }
    judged = {slot: judge(by_slot[slot].transaction, look) for slot, look in looks.items()}
    unproved = [slot for slot, look in looks.items() if needs_log(by_slot[slot].transaction, look)]
    endings = read_endings(control, [by_slot[slot] for slot in unproved])
    for slot in unproved:
        transaction = by_slot[slot].transaction
        judged[slot] = judge(transaction, replace(looks[slot], log=endings[transaction.id]))
    return judged


def how_to_finish(
    control: ControlPlane, handle: KafkaCommittable, parts: Parts, evidence: str
) -> tuple[Outcome, str] | None:
    """Return how to finish a transaction of a completed checkpoint that is over and has open ``parts``; None if that is
    not known. The markers decide what readers see: if every part waits for its marker, all can be committed, as the
    checkpoint is, even if the brokers meant to abort them."""
    transaction = handle.transaction
    view = Transactions(control).describe([transaction.id])[transaction.id]
    log = read_endings(control, [handle])[transaction.id]
    if not is_over(transaction.producer_id, transaction.epoch, view):
        return None
    if log.ending is LogEnding.COMMITTED and not log.aborted:
        return Outcome.COMMITTED, f"{evidence}; a part was committed, and others wait for their marker: {log.detail}"
    if log.ending is not LogEnding.UNKNOWN:
        return None
    if log.aborted:
        return Outcome.LOST, f"{evidence}; a part was aborted, and others are open without a marker: {log.detail}"
    if parts.whole:
        return Outcome.COMMITTED, f"{evidence}; every part is there and waits for its marker"
    return None
