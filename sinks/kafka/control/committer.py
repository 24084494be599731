"""Ends the transactions of this sink: in the driver, or in the coordinator for a job without a driver.

It keeps no state between calls but its hold on a claim: the committables and the brokers hold all it needs.
"""

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import timedelta

from onceward.common.errors import ConfigurationError
from onceward.connections.cluster import KafkaCluster
from onceward.connectors.interfaces import Age, Committer, OpenTransaction, TransactionHandle
from onceward.protocol.committing import FoundHanging, PreCommitted
from onceward.protocol.values import Author, Claim, Committable, JobName, Outcome, Settlement
from onceward.sinks.kafka.control.brokers import broker_settings
from onceward.sinks.kafka.control.claim_reading import read_claim, read_written_claim
from onceward.sinks.kafka.control.claims import ClaimHolder
from onceward.sinks.kafka.control.clock import Clock
from onceward.sinks.kafka.control.cluster_lookup import reach
from onceward.sinks.kafka.control.committables import KafkaCommittable
from onceward.sinks.kafka.control.control_plane import ControlPlane, Waves
from onceward.sinks.kafka.control.fencing import abort_transactions, fence_ids, list_open, refuse_newer
from onceward.sinks.kafka.control.finding import find_hanging
from onceward.sinks.kafka.control.finishing import LOOK_INTERVAL_S, finish_abandoned
from onceward.sinks.kafka.control.forgetting import forget_job
from onceward.sinks.kafka.control.listing import handle_of, open_transactions
from onceward.sinks.kafka.control.looking import judgements
from onceward.sinks.kafka.control.outcomes import Judgement, conclude
from onceward.sinks.kafka.control.recent import KafkaPreCommitted, Lately
from onceward.sinks.kafka.control.settling import Settling
from onceward.sinks.kafka.control.transactions import PREPARED, Code, Listed
from onceward.sinks.kafka.errors import ControlPlaneError

__all__ = ["KafkaCommitter"]

_CAP = "transaction.max.timeout.ms"
_MAX_SPLITS = 500
"""Characters that are shown of splits which no source has described."""


class KafkaCommitter(Committer):
    """Ends transactions on one or more clusters; the cluster id in the committable selects the cluster.

    Thread-safe, but for a claim, which one thread takes and renews.
    """

    def __init__(
        self,
        clusters: Iterable[KafkaCluster | str] = (),
        *,
        controls: Iterable[ControlPlane] = (),
        clock: Clock | None = None,
        generation: Callable[[], int | None] = lambda: None,
        topics: Collection[str] | None = None,
    ) -> None:
        """`clusters` get their own connections, closed with this object; `controls` are shared and stay open.

        `generation` returns the generation granted to this process, once granted; a sweep refuses to touch newer ones.
        `topics`: where a sweep looks for transactions that the brokers have ended without all markers; None: in all, as
        the coordinator does, which does not know them.
        """
        self._generation = generation
        self._topics = topics
        self._owned = [ControlPlane(KafkaCluster.of(cluster)) for cluster in clusters]
        self._controls = [*controls, *self._owned]
        self._clock = clock or Clock()
        self._claim: ClaimHolder | None = None
        self._versions: Lately[Code] = Lately()
        if not self._controls:
            raise ConfigurationError(
                "A Kafka committer was made without a cluster, so it cannot reach a transaction. No data was touched. "
                "Name the clusters, for example with onceward serve --systems FILE."
            )

    def id(self) -> str:
        """See :meth:`Committer.id`. Raises ControlPlaneError if a cluster does not say its id."""
        return "+".join(control.cluster_id() for control in self._controls)

    def check(self, author: Author, committables: Sequence[Committable]) -> None:
        """See :meth:`Committer.check`. Also raises HaltedError for an unreadable document."""
        for committable in committables:
            KafkaCommittable.own(committable, author)

    def commit(
        self,
        author: Author,
        committables: Sequence[Committable],
        *,
        give_up: Callable[[], bool] = lambda: False,
        known: PreCommitted | None = None,
    ) -> Sequence[Settlement]:
        """See :meth:`Committer.commit`. Raises HaltedError before any request if a document is unreadable or not the
        author's."""
        handles = [KafkaCommittable.own(committable, author) for committable in committables]
        recent = known if isinstance(known, KafkaPreCommitted) else None
        return Settling(self._controls, handles, self._clock, give_up, recent).run()

    def abort(self, author: Author, committables: Sequence[Committable]) -> None:
        """See :meth:`Committer.abort`.

        Raises HaltedError as :meth:`commit` does, ContradictionError if a transaction turns out committed,
        ControlPlaneError if the brokers do not confirm within 30 s; remaining transactions then end by their timeout,
        and the next sweep looks for them.
        """
        handles = [KafkaCommittable.own(committable, author) for committable in committables]
        reached = reach(self._controls, handles)
        for control, found in reached.found:
            abort_transactions(control, found, self._clock)
        if missing := reached.missing(handles):
            why = next(iter(missing.values()))
            raise ControlPlaneError(
                f"The transactions of slots {sorted(missing)} could not be aborted: {why}. Nothing of them is visible; "
                "the brokers abort them after their timeout. Check the bootstrap servers."
            )

    def outcome(self, committable: Committable) -> Settlement:
        """See :meth:`Committer.outcome`. Looks twice unless the first look proves a commit; fences nothing."""
        handle = KafkaCommittable.of(committable)
        seen: list[Judgement] = []
        for looked in range(2):
            if looked:
                self._clock.wait(LOOK_INTERVAL_S)
            reached = reach(self._controls, [handle])
            if reached.elsewhere:
                return Settlement(slot=handle.slot, outcome=Outcome.IN_DOUBT, evidence=reached.elsewhere[handle.slot])
            for control, found in reached.found:
                seen += judgements(control, found, {}).values()
            concluded = conclude(seen)
            if concluded is not None:
                return Settlement(slot=handle.slot, outcome=concluded[0], evidence=concluded[1])
        evidence = seen[-1].evidence if seen else "its cluster cannot be reached"
        return Settlement(slot=handle.slot, outcome=Outcome.IN_DOUBT, evidence=evidence)

    def describe(self, committable: Committable) -> str:
        """See :meth:`Committer.describe`: names the slot, the transaction and the input."""
        handle = KafkaCommittable.of(committable)
        read = handle.input_text or json.dumps(handle.inputs)[:_MAX_SPLITS]
        written = ", ".join(f"{topic.records} to {name}" for name, topic in sorted(handle.topics.items()))
        return (
            f"slot {handle.slot} of checkpoint {handle.checkpoint}, transaction {handle.transaction.id} on cluster "
            f"{handle.cluster_name!r}: {handle.records} records ({written}) from {read}"
        )

    def handle(self, committable: Committable) -> TransactionHandle:
        """See :meth:`Committer.handle`. Raises HaltedError for an unreadable document."""
        transaction = KafkaCommittable.of(committable).transaction
        return handle_of(transaction.id, transaction.producer_id, transaction.epoch)

    def age(self, committable: Committable) -> Age | None:
        """See :meth:`Committer.age`. The brokers' clock gives the start, our clock the present time: the age is wrong
        by the difference, and only shown."""
        handle = KafkaCommittable.of(committable)
        if handle.timeout <= timedelta(0):
            return None
        began = handle.pre_committed if handle.began is None else min(handle.began, handle.pre_committed)
        open_for = max(timedelta(0), self._clock.now() - began)
        return Age(transaction=handle.transaction.id, open_for=open_for, timeout=handle.timeout)

    def leftovers(self, job: JobName, *, keep: Collection[Committable] = ()) -> Sequence[str]:
        """See :meth:`Committer.leftovers`. Raises ControlPlaneError if a broker does not answer."""
        kept = {KafkaCommittable.of(committable).transaction.id for committable in keep}
        found = [identifier for control in self._controls for identifier in list_open(control, job, self._clock)]
        return sorted(str(identifier) for identifier in found if str(identifier) not in kept)

    def transactions(self, job: JobName) -> Sequence[OpenTransaction]:
        """See :meth:`Committer.transactions`. Raises ControlPlaneError if a broker does not answer."""
        found = [one for control in self._controls for one in open_transactions(control, job, self._clock)]
        return sorted(found, key=lambda one: one.handle)

    def hanging(self, topics: Collection[str] | None = None) -> FoundHanging:
        """See :meth:`Committer.hanging`. Raises ControlPlaneError if the brokers do not answer."""
        found = [find_hanging(control, topics, self._clock) for control in self._controls]
        return FoundHanging(
            transactions=tuple(one for each in found for one in each.transactions),
            looked_into=sum(each.looked_into for each in found),
            unknown=tuple(one for each in found for one in each.unknown),
        )

    def ending(self, job: JobName, *, beside: Collection[Committable] = ()) -> Sequence[str]:
        """See :meth:`Committer.ending`. Raises ControlPlaneError if a broker does not answer, or if a cluster of
        ``beside`` cannot be reached."""
        controls: Sequence[ControlPlane] = self._controls
        if beside:
            handles = [KafkaCommittable.of(committable) for committable in beside]
            reached = reach(controls, handles)
            if missing := reached.missing(handles):
                why = next(iter(missing.values()))
                raise ControlPlaneError(
                    f"Whether readers see the commits of slots {sorted(missing)} is unknown: {why}. Nothing was "
                    "changed. Check the bootstrap servers."
                )
            controls = [control for control, _ in reached.found]
        found = [one for control in controls for one in list_open(control, job, self._clock, states=PREPARED)]
        return sorted(map(str, found))

    def sweep(
        self,
        job: JobName,
        *,
        keep: Collection[Committable] = (),
        staying: Collection[str] = (),
        known: Sequence[PreCommitted] = (),
    ) -> Sequence[str]:
        """See :meth:`Committer.sweep`. While tasks stay, and right after a pre-commit, it does not look for what was
        ended without its markers.

        Raises FencedError if a newer generation has an open transaction, ControlPlaneError if the brokers do not
        confirm within 30 s.
        """
        generation = self._generation()
        kept = {KafkaCommittable.of(committable).transaction.id for committable in keep}
        swept: list[str] = []
        for control in self._controls:
            found = list_open(control, job, self._clock, first=_listed(known, control))
            if generation is not None:
                refuse_newer(job, generation, found)
            left = [
                str(identifier)
                for identifier in found
                if str(identifier) not in kept
                and not (identifier.generation == generation and identifier.worker in staying)
            ]
            fence_ids(control, left, self._clock, topics=() if staying or known else self._topics)
            swept += left
            if generation is not None and not (staying or known):
                swept += finish_abandoned(control, job, self._topics, kept, generation, self._clock)
        return sorted(set(swept))

    def read_claim(self, job: JobName, *, certain: bool = False) -> Claim | None:
        """See :meth:`Committer.read_claim`. Raises ControlPlaneError after 30 s, HaltedError if it is unreadable."""
        return (read_written_claim if certain else read_claim)(self._one(), job, self._clock)

    def take_claim(self, job: JobName, claim: Claim, seen: Collection[Claim]) -> None:
        """See :meth:`Committer.take_claim`. Also raises ControlPlaneError if the brokers do not confirm within 30 s,
        HaltedError for an unreadable claim."""
        self._claim, self._versions = ClaimHolder(self._one(), job, self._clock), Lately()
        self._claim.take(claim, seen)

    def prepare_claim(self, claim: Claim) -> None:
        """See :meth:`Committer.prepare_claim`."""
        if self._claim is not None:
            self._claim.prepare(claim)

    def renew_claim(
        self, claim: Claim, *, give_up: Callable[[], bool] = lambda: False, known: PreCommitted | None = None
    ) -> bool:
        """See :meth:`Committer.renew_claim`. Also raises ControlPlaneError if the brokers refuse."""
        if self._claim is None:
            raise ConfigurationError("This committer holds no claim. Nothing was written. Call take_claim() first.")
        if not isinstance(known, KafkaPreCommitted):
            return self._claim.renew(claim, give_up)

        def run(commit: Waves[Code]) -> Code:
            return known.look_ahead(commit, self._clock.monotonic(), self._versions)

        return self._claim.renew(claim, give_up, run=run)

    def _one(self) -> ControlPlane:
        """Return the cluster of a claim."""
        if len(self._controls) > 1:
            raise ConfigurationError(
                f"A claim is of one cluster, and this committer reaches {len(self._controls)}. Nothing was asked or "
                "written. Make a committer for each cluster."
            )
        return self._controls[0]

    def forget(self, job: JobName, last: Claim) -> None:
        """See :meth:`Committer.forget`. Raises ControlPlaneError."""
        for control in self._controls:
            forget_job(control, job, last, self._clock)

    def longest_open(self) -> timedelta:
        """See :meth:`Committer.longest_open`: no transaction has a timeout above the brokers' cap."""
        found = [broker_settings(control, [_CAP]) or {} for control in self._controls]
        caps = [int(settings[_CAP]) for settings in found if settings.get(_CAP, "").isdigit()]
        return timedelta(milliseconds=max(caps)) if caps else super().longest_open()

    def close(self) -> None:
        """Release connections. Ends no transaction."""
        for control in self._owned:
            control.close()


def _listed(known: Iterable[PreCommitted], control: ControlPlane) -> Listed | None:
    """Return what a pre-commit has listed on this cluster."""
    for one in known:
        if isinstance(one, KafkaPreCommitted) and one.control is control and one.listed is not None:
            return one.listed
    return None
