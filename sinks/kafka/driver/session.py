"""A Kafka sink for one run of a job, on the driver."""

import math
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from onceward.common.errors import ConfigurationError
from onceward.common.printable import logger
from onceward.connections.cluster import KAFKA_TOPIC
from onceward.connectors.interfaces import (
    Chosen,
    Finding,
    JobContext,
    Origin,
    Refusal,
    Resource,
    SinkSession,
)
from onceward.connectors.slots import StayingWriter
from onceward.connectors.tasks import Vote
from onceward.protocol.values import (
    NO_CHECKPOINT,
    CheckpointId,
    Committable,
    Generation,
    JsonObject,
)
from onceward.sinks.kafka.control.brokers import topic_facts, topic_limits
from onceward.sinks.kafka.control.clock import Clock
from onceward.sinks.kafka.control.committables import KafkaCommittable
from onceward.sinks.kafka.control.control_plane import ControlPlane
from onceward.sinks.kafka.control.finishing import finish_abandoned
from onceward.sinks.kafka.control.receipt_cleanup import delete_older_receipts, delete_receipts
from onceward.sinks.kafka.control.recent import KafkaPreCommitted, KnownPlaces
from onceward.sinks.kafka.control.system import KafkaSystem
from onceward.sinks.kafka.control.transactions import end_txn_version
from onceward.sinks.kafka.driver import columns, preflight, refusals, replays
from onceward.sinks.kafka.driver.precommit import (
    Owner,
    ask_brokers,
    make_committables,
    require_same_topics,
)
from onceward.sinks.kafka.driver.reuse import ReusableIds
from onceward.sinks.kafka.errors import ControlPlaneError
from onceward.sinks.kafka.executor.at_least_once import AtLeastOnceWriter
from onceward.sinks.kafka.executor.writer import COMMITTED_OPTION, KafkaSlotWriter
from onceward.sinks.kafka.identifiers import TransactionalId
from onceward.sinks.kafka.timeouts import NEVER, as_milliseconds

if TYPE_CHECKING:
    from onceward.sinks.kafka.driver.sink import KafkaSink

__all__ = ["LATE_INTERVAL_S", "KafkaSinkSession"]

LATE_INTERVAL_S = 30.0
"""Between two looks for what earlier generations have left without its markers."""

_log = logger("onceward.kafka")


class KafkaSinkSession(SinkSession):
    """Implements :class:`Stays`, :class:`Replays` and :class:`ReusesIds`, too."""

    def __init__(
        self,
        sink: "KafkaSink",
        context: JobContext,
        control: ControlPlane,
        cluster_id: str,
        *,
        clock: Clock | None = None,
    ) -> None:
        """`control` is closed with this object."""
        self.participant = sink.participant
        self.cluster = sink.cluster
        self.topics = sink.topics
        self.cluster_id = cluster_id
        """The id of the cluster that answered when the sink was connected."""
        self._topic = sink.topic
        self._transactional = sink.transactional
        self._given_timeout = sink.transaction_timeout
        self._timeout: timedelta | None = None
        self._context = context
        self._control = control
        self._generation: Generation | None = None
        self._owner: Owner | None = None
        self._ids = ReusableIds()
        self._topic_ids: dict[str, str] = {}
        """Topic ids when this process first owned the job."""
        self._tidied = False
        self._places = KnownPlaces()
        self._looked = -math.inf
        """When transactions without their markers were looked for, on the clock's monotonic time."""
        self._clock = clock or Clock()

    def preflight(self) -> Sequence[Finding]:
        control, context = self._control, self._context
        check = preflight.SinkCheck(
            cluster=self.cluster,
            job=context.job,
            sink=self.participant.name,
            topics=self.topics,
            checkpoint_timeout=context.checkpoint_timeout,
            transaction_timeout=self._given_timeout,
            transactional=self._transactional,
        )
        return preflight.examine(control, check)

    def writes(self) -> Collection[Resource]:
        return [Resource(kind=KAFKA_TOPIC, cluster=self.cluster_id, name=topic) for topic in self.topics]

    def begin_generation(self, generation: Generation) -> None:
        control, context = self._control, self._context
        # Set first: the requests below can fail, and the sweep of a leaving driver must recognise newer generations.
        self._generation = generation
        self._owner = Owner(
            job=context.job,
            sink=self.participant.name,
            generation=generation,
            cluster_name=self.cluster.name,
            cluster_id=self.cluster_id,
            end_txn_version=end_txn_version(control),
            topics=(topics := topic_facts(control, self.topics)),
        )
        for topic in topics.values():
            self._topic_ids.setdefault(topic.name, topic.id)
        self._timeout = None
        self._ids = ReusableIds()
        self._tidied = False

    def choose(self, given: Sequence[tuple[str, str]]) -> Sequence[Chosen]:
        return columns.choose(given, routed=self._topic is None)

    def write(self) -> StayingWriter:
        return self._writer(stays=False)

    def stay(self) -> StayingWriter:
        return self._writer(stays=True)

    def explain(self, cause: str) -> Refusal | None:
        """Explain what client or brokers refuse: the topics, and their present settings."""
        return refusals.explain(refusals.Output(self._control, self.cluster, self.topics), cause)

    def hides_until_decided(self) -> bool:
        return self._transactional

    def offer(self, after: CheckpointId = NO_CHECKPOINT) -> JsonObject:
        return {COMMITTED_OPTION: self._ids.offered(after)}

    def pre_commit(
        self, checkpoint: CheckpointId, votes: Sequence[Vote], origins: Sequence[Origin], *, leftovers: bool
    ) -> KafkaPreCommitted:
        """See :meth:`SinkSession.pre_commit`. Also raises HaltedError if a topic was deleted and recreated."""
        control = self._control
        owner = self._granted()
        asked = self._clock.monotonic()
        first = ask_brokers(
            control, owner, checkpoint, votes, self._topic_ids, places=self._places, now=asked, listing=leftovers
        )
        handles = make_committables(
            control, owner, checkpoint, votes, origins, self._clock, first=first, before=self._ids.pair
        )
        require_same_topics(control.cluster.name, first.topics, self._topic_ids)
        self._ids.written(checkpoint)
        return KafkaPreCommitted(
            committables=tuple(handle.to_committable() for handle in handles),
            handles=handles,
            control=control,
            asked=asked,
            located=first.located,
            topics=first.topics,
            listed=first.listed,
        )

    def origin(self, committable: Committable) -> Origin:
        handle = KafkaCommittable.of(committable)
        return Origin(inputs=handle.inputs, replayable=handle.replayable, text=handle.input_text)

    def check_destination(self, lost: Sequence[Committable]) -> None:
        """See :meth:`Replays.check_destination`. Also raises ControlPlaneError if the brokers do not describe the
        topics."""
        control = self._control
        replays.refuse_changed(
            [KafkaCommittable.of(committable) for committable in lost],
            cluster_id=control.cluster_id(),
            topics=topic_facts(control, self.topics),
        )

    def on_settled(self, checkpoint: CheckpointId, committables: Sequence[Committable]) -> None:
        """Free the ids for reuse by workers. Deletes receipts that are no longer needed: those of ids no longer used
        and, with the first settled checkpoint, those of all earlier generations, whose processes are gone."""
        control, context = self._control, self._context
        generation = self._granted().generation
        ours = {}
        for transaction in (KafkaCommittable.of(one).transaction for one in committables):
            parsed = TransactionalId.parse(transaction.id)
            if parsed is not None and parsed.generation == generation:
                ours[parsed.suffix] = transaction.producer_id, transaction.epoch
        unused = self._ids.settled(checkpoint, ours)
        if not self._tidied:
            self._tidied = True
            delete_older_receipts(control, context.job, below=generation)
        owner = f"{context.job}.{self.participant.name}.{generation}"
        delete_receipts(control, context.job, [f"{owner}.{suffix}" for suffix in unused])
        self._end_late_ones()

    def _end_late_ones(self) -> None:
        """Now and then end what late tasks of earlier generations have left behind without its markers."""
        control, context = self._control, self._context
        now = self._clock.monotonic()
        if now - self._looked < LATE_INTERVAL_S:
            return
        self._looked = now
        try:
            finish_abandoned(control, context.job, self.topics, (), self._granted().generation - 1, self._clock)
        except ControlPlaneError as error:
            _log.warning("%s", error)  # no record of this job is lost by it; the next look, or start, tries again

    def partitions(self) -> int:
        return min(topic.partitions for topic in topic_facts(self._control, self.topics).values())

    def system(self) -> KafkaSystem:
        control = self._control
        return KafkaSystem(control, clock=self._clock, generation=lambda: self._generation, topics=self.topics)

    def close(self) -> None:
        self._control.close()

    def _writer(self, *, stays: bool) -> StayingWriter:
        control, context = self._control, self._context
        if not self._transactional:
            return AtLeastOnceWriter(
                cluster=self.cluster,
                topic=self._topic,
                topics=self.topics,
                limit_ms=as_milliseconds(context.checkpoint_timeout),
                topic_limits=topic_limits(control, self.topics),
            )
        if self._timeout is None:
            self._timeout = preflight.transaction_timeout(control, self._given_timeout)
        return KafkaSlotWriter(
            cluster=self.cluster,
            topic=self._topic,
            topics=self.topics,
            transaction_timeout_ms=as_milliseconds(self._timeout),
            limit_ms=as_milliseconds(context.checkpoint_timeout if self._timeout == NEVER else self._timeout),
            topic_limits=topic_limits(control, self.topics),
            stays=stays,
        )

    def _granted(self) -> Owner:
        if self._owner is None:
            raise ConfigurationError(
                "This Kafka sink has no generation. Nothing was asked or written. Call begin_generation() first."
            )
        return self._owner
