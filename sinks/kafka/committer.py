"""Ends the transactions of this sink: in the driver, or in the coordinator for a job whose driver is gone.

Commit asks for as long as it takes. An answer that proves nothing starts an investigation: every two seconds EndTxn,
DescribeTransactions and the receipt together, until `outcomes` can conclude. Nothing here is remembered between calls;
what is needed is in the committables and at the brokers.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta

from connections import KafkaCluster
from coordinator.errors import ConfigurationError
from coordinator.killpoints import KillPoint, kill_point
from coordinator.pipeline.interfaces import Committer, OpenTransaction
from coordinator.protocol.values import Claim, Committable, JobName, Outcome, Settlement
from sinks.kafka.brokers import broker_settings
from sinks.kafka.claims import read_claim, write_claim
from sinks.kafka.committables import KafkaCommittable
from sinks.kafka.control import ControlPlane
from sinks.kafka.errors import ControlPlaneError
from sinks.kafka.fencing import abort_transactions, fence_ids, list_open
from sinks.kafka.listing import open_transactions
from sinks.kafka.markers import read_endings
from sinks.kafka.outcomes import EndAnswer, Judgement, Look, Proof, classify, conclude, describe_code, judge, needs_log
from sinks.kafka.patience import Backoff, Clock
from sinks.kafka.precommit import refuse_newer
from sinks.kafka.receipts import read_receipts
from sinks.kafka.transactions import Code, Transactions

__all__ = ["LOOK_INTERVAL_S", "KafkaCommitter"]

LOOK_INTERVAL_S = 2.1
"""Between two looks: a stale coordinator gives wrong negative answers for some seconds."""

_CAP = "transaction.max.timeout.ms"


@dataclass(kw_only=True)
class _Pending:
    """A committable whose outcome is not known yet."""

    handle: KafkaCommittable
    judgements: list[Judgement] = field(default_factory=list)


class KafkaCommitter(Committer):
    """Ends transactions on one or more clusters; which one is decided by the cluster id in the committable.

    Thread-safe: it keeps nothing between calls but connections.
    """

    def __init__(
        self,
        clusters: Iterable[KafkaCluster | str] = (),
        *,
        controls: Iterable[ControlPlane] = (),
        clock: Clock | None = None,
        generation: Callable[[], int | None] = lambda: None,
    ) -> None:
        """`clusters` get connections of their own, closed with this; `controls` are shared and stay open.

        `generation`: what this process was granted, once it is; a sweep refuses to touch anything newer.
        """
        self._generation = generation
        self._owned = [ControlPlane(KafkaCluster.of(cluster)) for cluster in clusters]
        self._controls = [*controls, *self._owned]
        self._clock = clock or Clock()
        if not self._controls:
            raise ConfigurationError(
                "A Kafka committer was made without a cluster, so it cannot reach a transaction. No data was touched. "
                "Name the clusters, for example with onceward serve --clusters FILE."
            )

    def commit(
        self, committables: Sequence[Committable], *, give_up: Callable[[], bool] = lambda: False
    ) -> Sequence[Settlement]:
        """See :meth:`Committer.commit`. Raises HaltedError before anything is asked when a document is unreadable."""
        pending = {handle.slot: _Pending(handle=handle) for handle in map(KafkaCommittable.of, committables)}
        settled: dict[int, Settlement] = {}
        backoff = Backoff()
        while pending:
            doubtful: dict[int, Code] = {}
            for control, group in self._by_cluster(pending, settled):
                doubtful.update(self._ask(control, group, settled))
                self._look(control, {slot: group[slot] for slot in group if slot in doubtful}, doubtful, settled)
            pending = {slot: entry for slot, entry in pending.items() if slot not in settled}
            if not pending or give_up():
                break
            self._clock.wait(LOOK_INTERVAL_S if doubtful.keys() & pending.keys() else backoff.next())
        return [settled[slot] for slot in sorted(settled)]

    def abort(self, committables: Sequence[Committable]) -> None:
        """See :meth:`Committer.abort`.

        Raises ContradictionError when one turns out committed, ControlPlaneError when the brokers do not confirm within
        30 s; what is left then ends by its timeout, and the next sweep looks again.
        """
        pending = {handle.slot: _Pending(handle=handle) for handle in map(KafkaCommittable.of, committables)}
        elsewhere: dict[int, Settlement] = {}
        reached: set[int] = set()
        for control, group in self._by_cluster(pending, elsewhere):
            abort_transactions(control, [entry.handle for entry in group.values()], self._clock)
            reached |= group.keys()
        missing = sorted(pending.keys() - reached)
        if missing:
            why = next((settlement.evidence for settlement in elsewhere.values()), "its cluster cannot be reached")
            raise ControlPlaneError(
                f"The transactions of slots {missing} could not be aborted: {why}. Nothing of them is visible; the "
                "brokers abort them after their timeout. Check the bootstrap servers."
            )

    def outcome(self, committable: Committable) -> Settlement:
        """See :meth:`Committer.outcome`. Looks twice if the first look is no positive proof; fences nothing."""
        handle = KafkaCommittable.of(committable)
        elsewhere: dict[int, Settlement] = {}
        judgements: list[Judgement] = []
        for looked in range(2):
            if looked:
                self._clock.wait(LOOK_INTERVAL_S)
            for control, _ in self._by_cluster({handle.slot: _Pending(handle=handle)}, elsewhere):
                judgements += self._judgements(control, {handle.slot: handle}, {}).values()
            if elsewhere:
                return elsewhere[handle.slot]
            concluded = conclude(judgements)
            if concluded is not None:
                return Settlement(slot=handle.slot, outcome=concluded[0], evidence=concluded[1])
        evidence = judgements[-1].evidence if judgements else "its cluster cannot be reached"
        return Settlement(slot=handle.slot, outcome=Outcome.IN_DOUBT, evidence=evidence)

    def describe(self, committable: Committable) -> str:
        """See :meth:`Committer.describe`: names the slot, the transaction and the exact input."""
        handle = KafkaCommittable.of(committable)
        ranges = ", ".join(
            f"{r.get('topic')}-{r.get('partition')} [{r.get('start')}, {r.get('end')})" for r in handle.inputs
        )
        written = ", ".join(f"{topic.records} to {name}" for name, topic in sorted(handle.topics.items()))
        return (
            f"slot {handle.slot} of checkpoint {handle.checkpoint}, transaction {handle.transaction.id} on cluster "
            f"{handle.cluster_name!r}: {handle.records} records ({written}) from input {ranges}"
        )

    def handle(self, committable: Committable) -> tuple[str, tuple[int, int]]:
        """See :meth:`Committer.handle`. Raises HaltedError for a document that is unreadable."""
        transaction = KafkaCommittable.of(committable).transaction
        return transaction.id, (transaction.producer_id, transaction.epoch)

    def leftovers(self, job: JobName, *, keep: Collection[Committable] = ()) -> Sequence[str]:
        """See :meth:`Committer.leftovers`. Raises ControlPlaneError when a broker cannot say."""
        kept = {KafkaCommittable.of(committable).transaction.id for committable in keep}
        found = [identifier for control in self._controls for identifier in list_open(control, job, self._clock)]
        return sorted(str(identifier) for identifier in found if str(identifier) not in kept)

    def transactions(self, job: JobName) -> Sequence[OpenTransaction]:
        """See :meth:`Committer.transactions`. Raises ControlPlaneError when a broker cannot say."""
        found = [one for control in self._controls for one in open_transactions(control, job, self._clock)]
        return sorted(found, key=lambda one: one.id)

    def sweep(self, job: JobName, *, keep: Collection[Committable] = ()) -> Sequence[str]:
        """See :meth:`Committer.sweep`.

        Raises FencedError when a newer generation is at work, ControlPlaneError when the brokers do not confirm within
        30 s.
        """
        generation = self._generation()
        kept = {KafkaCommittable.of(committable).transaction.id for committable in keep}
        swept: list[str] = []
        for control in self._controls:
            found = list_open(control, job, self._clock)
            if generation is not None:
                refuse_newer(job, generation, found)
            left = [str(identifier) for identifier in found if str(identifier) not in kept]
            fence_ids(control, left, self._clock)
            swept += left
        return sorted(swept)

    def claims(self, job: JobName) -> Sequence[Claim]:
        """See :meth:`Committer.claims`. Raises ControlPlaneError after 30 s, HaltedError for an unreadable one."""
        found = (read_claim(control, job, self._clock) for control in self._controls)
        return [claim for claim in found if claim is not None]

    def renew_claim(self, job: JobName, claim: Claim) -> None:
        """See :meth:`Committer.renew_claim`. Raises ControlPlaneError when the brokers do not confirm within 30 s."""
        for control in self._controls:
            if read_claim(control, job, self._clock) is not None:
                write_claim(control, job, claim, self._clock)

    def longest_open(self) -> timedelta:
        """See :meth:`Committer.longest_open`: no transaction has a timeout above the brokers' cap."""
        found = [broker_settings(control, [_CAP]) or {} for control in self._controls]
        caps = [int(settings[_CAP]) for settings in found if settings.get(_CAP, "").isdigit()]
        return timedelta(milliseconds=max(caps)) if caps else super().longest_open()

    def close(self) -> None:
        """Release connections. Ends no transaction."""
        for control in self._owned:
            control.close()

    def _by_cluster(
        self, pending: dict[int, _Pending], settled: dict[int, Settlement]
    ) -> list[tuple[ControlPlane, dict[int, _Pending]]]:
        """Group by the cluster that answers now. Where every cluster answers and none is the right one, the outcome is
        in doubt: bootstrap servers that lead elsewhere prove nothing."""
        ids: dict[str, ControlPlane] = {}
        all_answered = True
        for control in self._controls:
            try:
                ids[control.cluster_id()] = control
            except ControlPlaneError:
                all_answered = False
        groups: dict[str, dict[int, _Pending]] = {}
        for slot, entry in pending.items():
            wanted = entry.handle.cluster_id
            if wanted in ids:
                groups.setdefault(wanted, {})[slot] = entry
            elif all_answered:
                reached = ", ".join(f"{control.cluster.name!r} is {found}" for found, control in ids.items())
                evidence = (
                    f"the transaction is on cluster {entry.handle.cluster_name!r} with id {wanted}, "
                    f"but the clusters reached now are others ({reached}); nothing was asked there"
                )
                settled[slot] = Settlement(slot=slot, outcome=Outcome.IN_DOUBT, evidence=evidence)
        return [(ids[found], group) for found, group in groups.items()]

    def _ask(
        self, control: ControlPlane, group: dict[int, _Pending], settled: dict[int, Settlement]
    ) -> dict[int, Code]:
        """One EndTxn each. Settles what is committed; returns the refusals, which prove nothing."""
        transactions = Transactions(control)
        by_id = {entry.handle.transaction.id: slot for slot, entry in group.items()}
        located = transactions.locate(by_id)
        ordered = [entry.handle.transaction for _, entry in sorted(group.items())]
        # The first one alone: what happens between two ends must be a place where a test can stop the process.
        codes = transactions.end(ordered[:1], commit=True, located=located)
        if len(ordered) > 1:
            kill_point(KillPoint.DRIVER_BETWEEN_END_TXN)
            codes.update(transactions.end(ordered[1:], commit=True, located=located))
        doubtful: dict[int, Code] = {}
        for name, code in codes.items():
            slot = by_id[name]
            match classify(code):
                case EndAnswer.DONE:
                    version = group[slot].handle.transaction.version
                    evidence = f"EndTxn version {version} answered {describe_code(code)}"
                    settled[slot] = Settlement(slot=slot, outcome=Outcome.COMMITTED, evidence=evidence)
                case EndAnswer.DOUBT:
                    doubtful[slot] = code
                case EndAnswer.AGAIN:
                    pass
        return doubtful

    def _look(
        self,
        control: ControlPlane,
        group: dict[int, _Pending],
        doubtful: dict[int, Code],
        settled: dict[int, Settlement],
    ) -> None:
        handles = {slot: entry.handle for slot, entry in group.items()}
        for slot, judgement in self._judgements(control, handles, doubtful).items():
            entry = group[slot]
            entry.judgements.append(judgement)
            if [judged.proof for judged in entry.judgements[-2:]] == [Proof.OPEN_ELSEWHERE] * 2:
                # It hides our receipt. Asked once per look: 51 means that the abort is running. Seen twice, because a
                # stale view of an earlier transaction must not make us fence ours.
                Transactions(control).fence([entry.handle.transaction.id])
            concluded = conclude(entry.judgements)
            if concluded is not None:
                settled[slot] = Settlement(slot=slot, outcome=concluded[0], evidence=concluded[1])

    def _judgements(
        self, control: ControlPlane, handles: dict[int, KafkaCommittable], asked: dict[int, Code]
    ) -> dict[int, Judgement]:
        if not handles:
            return {}
        tokens = {handle.transaction.id: handle.token for handle in handles.values()}
        views = Transactions(control).describe(tokens)
        receipts = read_receipts(control, tokens)
        looks = {
            slot: Look(end=asked.get(slot), view=views[handle.transaction.id], receipt=receipts[handle.transaction.id])
            for slot, handle in handles.items()
        }
        judged = {slot: judge(handles[slot].transaction, look) for slot, look in looks.items()}
        unproved = [slot for slot, judgement in judged.items() if needs_log(judgement)]
        endings = read_endings(control, [handles[slot] for slot in unproved])
        for slot in unproved:
            transaction = handles[slot].transaction
            judged[slot] = judge(transaction, replace(looks[slot], log=endings[transaction.id]))
        return judged
