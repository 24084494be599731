"""Finds transactions of any program that hang: they are over for their coordinator, and open in a partition.

The rule is that of the brokers' own tool (``TransactionsCommand.FindHangingTransactionsCommand``): an open part hangs
if no transactional id has its producer id, or if the transaction of that id does not list the partition. The
coordinator lists a partition until its marker is written. The tool also demands that the last record is
older than 15 min, by the timestamp that its program gave it. Two looks take the place of that: the coordinator is asked
before the partition, because its markers precede its report (docs/facts.md#transactions-of-others).
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from uuid import uuid4

from onceward.connections.codes import ErrorCode
from onceward.connections.topics import TopicFacts
from onceward.protocol.committing import FoundHanging, HangingTransaction
from onceward.sinks.kafka.control.brokers import topic_facts
from onceward.sinks.kafka.control.clock import Clock
from onceward.sinks.kafka.control.control_plane import ControlPlane, together
from onceward.sinks.kafka.control.finishing import LOOK_INTERVAL_S
from onceward.sinks.kafka.control.outcomes import describe_code
from onceward.sinks.kafka.control.parts import OpenPart, look_for_open
from onceward.sinks.kafka.control.receipts import OFFSETS_TOPIC
from onceward.sinks.kafka.control.transactions import State, Transactions, TransactionView
from onceward.sinks.kafka.identifiers import claim_name, job_of

__all__ = ["find_hanging"]

_Views = Mapping[int, Sequence[TransactionView]]
"""What the coordinators report, by producer id."""


def find_hanging(control: ControlPlane, topics: Collection[str] | None, clock: Clock) -> FoundHanging:
    """Look into ``topics``, by default into all that the user may describe. Changes nothing; takes 2.1 s more if there
    is a suspect. Raises ControlPlaneError."""
    facts = topic_facts(control, topics)
    unknown = [
        f"topic {name} cannot be looked into: {describe_code(topic.code)}"
        for name, topic in sorted(facts.items())
        if topic.code != ErrorCode.NONE
    ]
    facts = {name: topic for name, topic in facts.items() if topic.code == ErrorCode.NONE}
    if topics is None and not _may_describe_all(control):
        unknown.append("topics that this user may not describe were not looked into: grant DESCRIBE on Topic '*'")
    found, refused, silent = look_for_open(control, facts)
    if refused:
        names = ", ".join(sorted({name for name, _ in refused}))
        unknown.append(f"open transactions in {names} are not shown: grant READ on the topic")
    if silent:
        named = ", ".join(f"{name}-{number}" for name, number in silent[:10])
        unknown.append(f"the leaders of {len(silent)} partitions do not answer ({named}): look again")
    views, doubts = _asked(control, found)
    suspects = [part for part in found if not _is_expected(part, views)]
    if suspects:
        clock.wait(LOOK_INTERVAL_S)
        views, doubts = _asked(control, suspects)
        suspects = [part for part in suspects if not _is_expected(part, views)]
        places = {part.place[0] for part in suspects}
        again, _, _ = look_for_open(control, {name: facts[name] for name in places})
        suspects = [part for part in suspects if part in again]
    hanging = [_described(control, part, views, doubts, clock.now()) for part in suspects]
    return FoundHanging(
        transactions=tuple(sorted(hanging, key=lambda one: (one.topic, one.partition, one.offset))),
        looked_into=_partitions(facts) - len(refused) - len(silent),
        unknown=tuple(unknown),
    )


def _partitions(facts: Mapping[str, TopicFacts]) -> int:
    return sum(len(topic.leaders) for topic in facts.values())


def _may_describe_all(control: ControlPlane) -> bool:
    """Ask about an unused name: brokers leave out topics that a user may not describe, without an error."""
    (probed,) = topic_facts(control, [f"onceward-probe-{uuid4()}"]).values()
    return probed.code != ErrorCode.TOPIC_AUTHORIZATION_FAILED


def _asked(control: ControlPlane, parts: Collection[OpenPart]) -> tuple[_Views, str]:
    """Return what the coordinators report about the producers of ``parts``, and why they may report too little."""
    producers = {part.producer_id for part in parts}
    if not producers:
        return {}, ""
    transactions, probe = Transactions(control), f"onceward-probe-{uuid4()}"
    (names, failed), located = control.run(
        together(transactions.listing(producers=producers), transactions.locating([probe]))
    )
    views: dict[int, list[TransactionView]] = {}
    doubts = [f"a coordinator did not list its transactions: {describe_code(code)}" for code in failed]
    for view in transactions.describe(names).values():
        if view.code == ErrorCode.NONE:
            views.setdefault(view.producer_id, []).append(view)
        elif view.code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            doubts.append(f"the coordinator of {view.id} did not describe it: {describe_code(view.code)}")
    if located[probe].code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        doubts.append("ids that this user may not describe are not listed: grant DESCRIBE on TransactionalId '*'")
    return views, "; ".join(doubts)


def _is_expected(part: OpenPart, views: _Views) -> bool:
    """Return whether the coordinator will write a marker for the part."""
    name, number = part.place
    return any(number in view.partitions.get(name, ()) for view in views.get(part.producer_id, ()))


def _described(control: ControlPlane, part: OpenPart, views: _Views, doubts: str, now: datetime) -> HangingTransaction:
    (topic, number), seen = part.place, views.get(part.producer_id, ())
    view = seen[0] if seen else None
    name = view.id if view is not None else ""
    certain = bool(name) or not doubts
    job = job_of(name)
    age = None
    if part.written_ms >= 0:
        age = max(timedelta(0), now - datetime.fromtimestamp(part.written_ms / 1000, tz=UTC))
    abort = (
        f"kafka-transactions.sh --bootstrap-server {control.cluster.bootstrap_servers} abort --topic {topic} "
        f"--partition {number} --start-offset {part.first_offset}"
    )
    return HangingTransaction(
        cluster=control.cluster.name,
        topic=topic,
        partition=number,
        offset=part.first_offset,
        producer_id=part.producer_id,
        epoch=part.epoch,
        age=age,
        id=name,
        job=job,
        state=view.state.value if view is not None else "not known",
        certain=certain,
        doubt="" if certain else doubts,
        remedy=_remedy(name, job, topic, abort) if certain else "",
        meaning=_meaning(view),
    )


def _remedy(name: str, job: str | None, topic: str, abort: str) -> str:
    if job is None:
        return abort
    if topic == OFFSETS_TOPIC and name != claim_name(job):
        return f"no reader of records waits for this receipt; to let the topic be compacted: {abort}"
    return f"start job {job}: it ends this as it was decided. Only if it never starts again: {abort}"


def _meaning(view: TransactionView | None) -> str:
    """What the abort of a part means for its records."""
    match view.state if view is not None else None:
        case State.COMPLETE_COMMIT:
            return (
                "its coordinator reports a commit, so its program had these records confirmed as committed, unless "
                "that was a later transaction of the id: an abort loses them, so note them first, from the offset on"
            )
        case State.COMPLETE_ABORT:
            return (
                "its coordinator reports an abort, so no program had these records confirmed, unless that was a later "
                "transaction of the id: an abort loses nothing"
            )
        case _:
            return (
                "its outcome is not known to the brokers any more: if its program had these records confirmed as "
                "committed, which its own log or state says, an abort loses them; note them first, from the offset on"
            )
