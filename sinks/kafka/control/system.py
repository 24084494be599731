"""A Kafka cluster as a system: in the driver, in a command, or in the coordinator for a job without a driver.

It keeps no state between calls but its hold on a claim: the committables and the brokers hold all it needs.
"""

import json
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import timedelta
from typing import Self

from onceward.common.errors import ConfigurationError
from onceward.connections.cluster import KafkaCluster
from onceward.protocol.committing import (
    Age,
    FoundHanging,
    OpenTransaction,
    Place,
    PreCommitted,
    System,
    TransactionHandle,
)
from onceward.protocol.values import Author, Claim, Committable, JobName, Outcome, Settlement
from onceward.sinks.kafka.control.brokers import broker_settings
from onceward.sinks.kafka.control.claim_reading import read_claim, read_written_claim
from onceward.sinks.kafka.control.claims import ClaimHolder
from onceward.sinks.kafka.control.clock import Clock
from onceward.sinks.kafka.control.committables import KafkaCommittable, elsewhere
from onceward.sinks.kafka.control.control_plane import ControlPlane, Operation
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

__all__ = ["KafkaSystem"]

_CAP = "transaction.max.timeout.ms"
_MAX_SPLITS = 500
"""Characters that are shown of splits which no source has described."""


class KafkaSystem(System):
    """One cluster. Thread-safe, but for a claim, which one thread takes and renews."""

    def __init__(
        self,
        control: ControlPlane,
        *,
        clock: Clock | None = None,
        generation: Callable[[], int | None] = lambda: None,
        topics: Collection[str] | None = None,
    ) -> None:
        """`control` is shared and stays open.

        `generation` returns the generation granted to this process, once granted; a sweep refuses to touch newer ones.
        `topics`: where a sweep looks for transactions that the brokers have ended without all markers; None: in all, as
        the coordinator does, which does not know them.
        """
        self._control = control
        self._generation = generation
        self._topics = topics
        self._clock = clock or Clock()
        self._claim: ClaimHolder | None = None
        self._versions: Lately[Code] = Lately()
        self._owned = False

    @classmethod
    def open(cls, cluster: KafkaCluster | str, *, generation: Callable[[], int | None] = lambda: None) -> Self:
        """Return a system with connections of its own, which are made when they are needed."""
        opened = cls(ControlPlane(KafkaCluster.of(cluster)), generation=generation)
        opened._owned = True
        return opened

    def id(self) -> str:
        """See :meth:`System.id`. Raises ControlPlaneError if the cluster does not answer."""
        return self._control.cluster_id()

    def place(self, committable: Committable) -> Place:
        """See :meth:`System.place`. Raises HaltedError for an unreadable document."""
        handle = KafkaCommittable.of(committable)
        return Place(id=handle.cluster_id, name=handle.cluster_name)

    def check(self, author: Author, committables: Sequence[Committable]) -> None:
        """See :meth:`System.check`. Also raises HaltedError for an unreadable document."""
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
        """See :meth:`System.commit`. Raises HaltedError before any request if a document is unreadable or not the
        author's."""
        handles = [KafkaCommittable.own(committable, author) for committable in committables]
        recent = known if isinstance(known, KafkaPreCommitted) else None
        return Settling(self._control, handles, self._clock, give_up, recent).run()

    def abort(self, author: Author, committables: Sequence[Committable]) -> None:
        """See :meth:`System.abort`.

        Raises HaltedError as :meth:`commit` does, ContradictionError if a transaction turns out committed,
        ControlPlaneError if the brokers do not confirm within 30 s; remaining transactions then end by their timeout,
        and the next sweep looks for them.
        """
        handles = [KafkaCommittable.own(committable, author) for committable in committables]
        missing = self._missing(handles)
        abort_transactions(self._control, [one for one in handles if one.slot not in missing], self._clock)
        if missing:
            raise ControlPlaneError(
                f"The transactions of slots {sorted(missing)} could not be aborted: {next(iter(missing.values()))}. "
                "Nothing of them is visible; the brokers abort them after their timeout. Check the bootstrap servers."
            )

    def outcome(self, committable: Committable) -> Settlement:
        """See :meth:`System.outcome`. Looks twice unless the first look proves a commit; fences nothing."""
        handle = KafkaCommittable.of(committable)
        seen: list[Judgement] = []
        for looked in range(2):
            if looked:
                self._clock.wait(LOOK_INTERVAL_S)
            try:
                missing = elsewhere(self._control, [handle])
            except ControlPlaneError:
                continue
            if missing:
                return Settlement(slot=handle.slot, outcome=Outcome.IN_DOUBT, evidence=missing[handle.slot])
            seen += judgements(self._control, [handle], {}).values()
            concluded = conclude(seen)
            if concluded is not None:
                return Settlement(slot=handle.slot, outcome=concluded[0], evidence=concluded[1])
        evidence = seen[-1].evidence if seen else "its cluster cannot be reached"
        return Settlement(slot=handle.slot, outcome=Outcome.IN_DOUBT, evidence=evidence)

    def describe(self, committable: Committable) -> str:
        """See :meth:`System.describe`: names the slot, the transaction and the input."""
        handle = KafkaCommittable.of(committable)
        read = handle.input_text or json.dumps(handle.inputs)[:_MAX_SPLITS]
        written = ", ".join(f"{topic.records} to {name}" for name, topic in sorted(handle.topics.items()))
        return (
            f"slot {handle.slot} of checkpoint {handle.checkpoint}, transaction {handle.transaction.id} on cluster "
            f"{handle.cluster_name!r}: {handle.records} records ({written}) from {read}"
        )

    def handle(self, committable: Committable) -> TransactionHandle:
        """See :meth:`System.handle`. Raises HaltedError for an unreadable document."""
        transaction = KafkaCommittable.of(committable).transaction
        return handle_of(transaction.id, transaction.producer_id, transaction.epoch)

    def age(self, committable: Committable) -> Age | None:
        """See :meth:`System.age`. The brokers' clock gives the start, our clock the present time: the age is wrong
        by the difference, and only shown."""
        handle = KafkaCommittable.of(committable)
        if handle.timeout <= timedelta(0):
            return None
        began = handle.pre_committed if handle.began is None else min(handle.began, handle.pre_committed)
        open_for = max(timedelta(0), self._clock.now() - began)
        return Age(transaction=handle.transaction.id, open_for=open_for, timeout=handle.timeout)

    def leftovers(self, job: JobName, *, keep: Collection[Committable] = ()) -> Sequence[str]:
        """See :meth:`System.leftovers`. Raises ControlPlaneError if a broker does not answer."""
        kept = {KafkaCommittable.of(committable).transaction.id for committable in keep}
        found = map(str, list_open(self._control, job, self._clock))
        return sorted(identifier for identifier in found if identifier not in kept)

    def transactions(self, job: JobName) -> Sequence[OpenTransaction]:
        """See :meth:`System.transactions`. Raises ControlPlaneError if a broker does not answer."""
        return sorted(open_transactions(self._control, job, self._clock), key=lambda one: one.handle)

    def hanging(self, topics: Collection[str] | None = None) -> FoundHanging:
        """See :meth:`System.hanging`. Raises ControlPlaneError if the brokers do not answer."""
        return find_hanging(self._control, topics, self._clock)

    def ending(self, job: JobName, *, beside: Collection[Committable] = ()) -> Sequence[str]:
        """See :meth:`System.ending`. Raises ControlPlaneError if a broker does not answer, or if one of ``beside``
        is on another cluster."""
        if missing := self._missing([KafkaCommittable.of(committable) for committable in beside]):
            raise ControlPlaneError(
                f"Whether readers see the commits of slots {sorted(missing)} is unknown: "
                f"{next(iter(missing.values()))}. Nothing was changed. Check the bootstrap servers."
            )
        return sorted(map(str, list_open(self._control, job, self._clock, states=PREPARED)))

    def _missing(self, handles: Sequence[KafkaCommittable]) -> dict[int, str]:
        """Return why those that cannot be asked about now cannot, by slot."""
        try:
            return elsewhere(self._control, handles) if handles else {}
        except ControlPlaneError:
            return {handle.slot: "its cluster cannot be reached" for handle in handles}

    def sweep(
        self,
        job: JobName,
        *,
        keep: Collection[Committable] = (),
        staying: Collection[str] = (),
        known: Sequence[PreCommitted] = (),
    ) -> Sequence[str]:
        """See :meth:`System.sweep`. While tasks stay, and right after a pre-commit, it does not look for what was
        ended without its markers.

        Raises FencedError if a newer generation has an open transaction, ControlPlaneError if the brokers do not
        confirm within 30 s.
        """
        generation = self._generation()
        kept = {KafkaCommittable.of(committable).transaction.id for committable in keep}
        found = list_open(self._control, job, self._clock, first=_listed(known))
        if generation is not None:
            refuse_newer(job, generation, found)
        swept = [
            str(identifier)
            for identifier in found
            if str(identifier) not in kept
            and not (identifier.generation == generation and identifier.worker in staying)
        ]
        fence_ids(self._control, swept, self._clock, topics=() if staying or known else self._topics)
        if generation is not None and not (staying or known):
            swept += finish_abandoned(self._control, job, self._topics, kept, generation, self._clock)
        return sorted(set(swept))

    def read_claim(self, job: JobName, *, certain: bool = False) -> Claim | None:
        """See :meth:`System.read_claim`. Raises ControlPlaneError after 30 s, HaltedError if it is unreadable."""
        return (read_written_claim if certain else read_claim)(self._control, job, self._clock)

    def take_claim(self, job: JobName, claim: Claim, seen: Collection[Claim]) -> None:
        """See :meth:`System.take_claim`. Also raises ControlPlaneError if the brokers do not confirm within 30 s,
        HaltedError for an unreadable claim."""
        self._claim, self._versions = ClaimHolder(self._control, job, self._clock), Lately()
        self._claim.take(claim, seen)

    def prepare_claim(self, claim: Claim) -> None:
        """See :meth:`System.prepare_claim`."""
        if self._claim is not None:
            self._claim.prepare(claim)

    def renew_claim(
        self, claim: Claim, *, give_up: Callable[[], bool] = lambda: False, known: PreCommitted | None = None
    ) -> bool:
        """See :meth:`System.renew_claim`. Also raises ControlPlaneError if the brokers refuse."""
        if self._claim is None:
            raise ConfigurationError("This system holds no claim. Nothing was written. Call take_claim() first.")
        if not isinstance(known, KafkaPreCommitted):
            return self._claim.renew(claim, give_up)

        def run(commit: Operation[Code]) -> Code:
            return known.look_ahead(commit, self._clock.monotonic(), self._versions)

        return self._claim.renew(claim, give_up, run=run)

    def forget(self, job: JobName, last: Claim) -> None:
        """See :meth:`System.forget`. Raises ControlPlaneError."""
        forget_job(self._control, job, last, self._clock)

    def longest_open(self) -> timedelta:
        """See :meth:`System.longest_open`: no transaction has a timeout above the brokers' cap."""
        cap = (broker_settings(self._control, [_CAP]) or {}).get(_CAP, "")
        return timedelta(milliseconds=int(cap)) if cap.isdigit() else super().longest_open()

    def close(self) -> None:
        """Release connections. Ends no transaction."""
        if self._owned:
            self._control.close()


def _listed(known: Iterable[PreCommitted]) -> Listed | None:
    """Return what a pre-commit has listed."""
    return next((one.listed for one in known if isinstance(one, KafkaPreCommitted) and one.listed is not None), None)
