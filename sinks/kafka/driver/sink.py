"""The Kafka sink that a job uses, on the driver."""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Literal

from onceward.common.errors import ConfigurationError
from onceward.common.printable import logger
from onceward.connections.admin import reach
from onceward.connections.cluster import KAFKA_TOPIC, KafkaCluster
from onceward.connectors.interfaces import Finding, JobContext, Origin, Refusal, Resource, Sink
from onceward.connectors.slots import StayingWriter
from onceward.connectors.tasks import Vote
from onceward.protocol.settings import Duration, as_duration
from onceward.protocol.values import (
    NO_CHECKPOINT,
    CheckpointId,
    Committable,
    Generation,
    JsonObject,
    OnLost,
    Participant,
    ParticipantName,
    Role,
)
from onceward.sinks.kafka.control.brokers import batch_limits, topic_facts
from onceward.sinks.kafka.control.clock import Clock
from onceward.sinks.kafka.control.committables import KafkaCommittable
from onceward.sinks.kafka.control.control_plane import ControlPlane
from onceward.sinks.kafka.control.finishing import finish_abandoned
from onceward.sinks.kafka.control.receipt_cleanup import delete_older_receipts, delete_receipts
from onceward.sinks.kafka.control.receipts import RECEIPT_TOPIC
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

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["KafkaSink"]

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_LONGEST_TIMEOUT = timedelta(milliseconds=2**31 - 1)
LATE_INTERVAL_S = 30.0
"""Between two looks for what earlier generations have left without its markers."""

_log = logger("onceward.kafka")


class KafkaSink(Sink):
    """Writes each slot of a checkpoint in a Kafka transaction that any process can end; or, at least once, without one.

    cluster: bootstrap servers, or a KafkaCluster shared with the source.
    topic: the topic of all records; it overrides a ``topic`` column.
    topics: instead of `topic`, the permitted topics: each record's ``topic`` column names one of them; another name
        declines the checkpoint.
    on_lost: what happens when a transaction of a completed checkpoint is proved lost. ``replay``: its records are
        rewritten before anything later; if that cannot be done exactly, the job halts. ``halt``: the job halts.
        ``skip``: its records are given up, and listings report that until a person acknowledges it.
    delivery: ``exactly_once``, or ``at_least_once``: idempotent producers without transactions; every record is
        confirmed before the checkpoint is decided. Nothing is lost; the output of a checkpoint that does not complete
        (a crash, a failure, a timeout) appears twice. The value may change between runs of
        a job (docs/how-to/at-least-once.md).
    transaction_timeout: time after which the brokers abort a transaction that was not ended; timedelta or text such as
        ``"15min"``. Default: the brokers' cap, at most 15 min. The preflight requires the checkpoint timeout + 10 min.
    name: the participant's name, unique within the job and the same in every run.

    Columns: ``value`` (string or binary) is required; ``key``, ``topic``, ``partition`` (int),
    ``headers`` (array<struct<key:string,value:binary>>) and ``timestamp`` are optional, others are ignored. Text is
    UTF-8, a null value is a tombstone, and keys are partitioned as in Java unless ``partition`` is given.

    Raises ConfigurationError listing every invalid argument.
    """

    def __init__(
        self,
        cluster: KafkaCluster | str,
        topic: str | None = None,
        topics: Sequence[str] | None = None,
        *,
        on_lost: Literal["replay", "halt", "skip"] = "replay",
        delivery: Literal["exactly_once", "at_least_once"] = "exactly_once",
        transaction_timeout: Duration | None = None,
        name: str = "sink",
    ) -> None:
        problems = [
            *_topic_problems(topic, topics),
            *_policy_problems(on_lost, delivery),
            *_timeout_problems(transaction_timeout),
        ]
        try:
            self.cluster = KafkaCluster.of(cluster)
        except ConfigurationError as error:
            problems.append(f"cluster: {error}")
        try:
            called = ParticipantName(name)
        except (TypeError, ValueError) as error:
            problems.append(f"name: {error}")
        if problems:
            raise ConfigurationError(
                "This KafkaSink cannot be used; nothing was connected. Change these arguments:\n"
                + "\n".join(f"  - {problem}" for problem in problems)
            )
        self.participant = Participant(name=called, role=Role.SINK, kind="kafka", on_lost=OnLost(on_lost))
        self._transactional = delivery == "exactly_once"
        self._topic = topic
        self.topics: tuple[str, ...] = (topic,) if topic is not None else tuple(dict.fromkeys(topics or ()))
        """Every topic that the sink may write to."""
        self._given_timeout = None if transaction_timeout is None else as_duration(transaction_timeout)
        self._timeout: timedelta | None = None
        self._context: JobContext | None = None
        self._control: ControlPlane | None = None
        self._cluster_id = ""
        self._generation: Generation | None = None
        self._owner: Owner | None = None
        self._ids = ReusableIds()
        self._topic_ids: dict[str, str] = {}
        """Topic ids when this process first owned the job."""
        self._tidied = False
        self._places = KnownPlaces()
        self._looked = -math.inf
        """When transactions without their markers were looked for, on the clock's monotonic time."""
        self._clock = Clock()

    @property
    def cluster_id(self) -> str:
        """Id of the cluster that answered when the sink was opened."""
        self._opened()
        return self._cluster_id

    def open(self, context: JobContext) -> None:
        """Connect to the cluster. Raises PreflightError within about 10 s if that is impossible."""
        self._context = context
        self._cluster_id = reach(self.cluster)
        self._control = ControlPlane(self.cluster, links=context.links)

    def preflight(self) -> Sequence[Finding]:
        control, context = self._opened()
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
        control, context = self._opened()
        # Set first: the requests below can fail, and the sweep of a leaving driver must recognise newer generations.
        self._generation = generation
        self._owner = Owner(
            job=context.job,
            sink=self.participant.name,
            generation=generation,
            cluster_name=self.cluster.name,
            cluster_id=self._cluster_id,
            end_txn_version=end_txn_version(control),
            topics=(topics := topic_facts(control, self.topics)),
        )
        for topic in topics.values():
            self._topic_ids.setdefault(topic.name, topic.id)
        self._timeout = None
        self._ids = ReusableIds()
        self._tidied = False

    def prepare(self, df: "DataFrame") -> "DataFrame":
        return columns.project(df, routed=self._topic is None)

    def takes(self, given: Mapping[str, str]) -> bool:
        return not columns.column_problems(tuple(given.items()), routed=self._topic is None)

    def write(self) -> StayingWriter:
        return self._writer(stays=False)

    def stay(self) -> StayingWriter:
        return self._writer(stays=True)

    def explain(self, cause: str) -> Refusal | None:
        """Explain what client or brokers refuse: the topics, and their present settings."""
        return refusals.explain(refusals.Output(self._opened()[0], self.cluster, self.topics), cause)

    def hides_until_decided(self) -> bool:
        return self._transactional

    def offer(self, after: CheckpointId = NO_CHECKPOINT) -> JsonObject:
        return {COMMITTED_OPTION: self._ids.offered(after)}

    def pre_commit(
        self, checkpoint: CheckpointId, votes: Sequence[Vote], origins: Sequence[Origin], *, leftovers: bool
    ) -> KafkaPreCommitted:
        """See :meth:`Sink.pre_commit`. Also raises HaltedError if a topic was deleted and recreated."""
        control, _ = self._opened()
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
        """See :meth:`Sink.check_destination`. Also raises ControlPlaneError if the brokers do not describe the
        topics."""
        control, _ = self._opened()
        replays.refuse_changed(
            [KafkaCommittable.of(committable) for committable in lost],
            cluster_id=control.cluster_id(),
            topics=topic_facts(control, self.topics),
        )

    def on_settled(self, checkpoint: CheckpointId, committables: Sequence[Committable]) -> None:
        """Free the ids for reuse by workers. Deletes receipts that are no longer needed: those of ids no longer used
        and, with the first settled checkpoint, those of all earlier generations, whose processes are gone."""
        control, context = self._opened()
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
        control, context = self._opened()
        now = self._clock.monotonic()
        if now - self._looked < LATE_INTERVAL_S:
            return
        self._looked = now
        try:
            finish_abandoned(control, context.job, self.topics, (), self._granted().generation - 1, self._clock)
        except ControlPlaneError as error:
            _log.warning("%s", error)  # no record of this job is lost by it; the next look, or start, tries again

    def system(self) -> KafkaSystem:
        control, _ = self._opened()
        return KafkaSystem(control, clock=self._clock, generation=lambda: self._generation, topics=self.topics)

    def close(self) -> None:
        if self._control is not None:
            self._control.close()
        self._control = None

    def _opened(self) -> tuple[ControlPlane, JobContext]:
        if self._control is None or self._context is None:
            raise ConfigurationError("This Kafka sink is not open. Nothing was asked or written. Call open() first.")
        return self._control, self._context

    def _writer(self, *, stays: bool) -> StayingWriter:
        control, context = self._opened()
        if not self._transactional:
            return AtLeastOnceWriter(
                cluster=self.cluster,
                topic=self._topic,
                topics=self.topics,
                limit_ms=int(context.checkpoint_timeout / timedelta(milliseconds=1)),
                batch_limits=batch_limits(control, self.topics),
            )
        if self._timeout is None:
            self._timeout = preflight.transaction_timeout(control, self._given_timeout)
        return KafkaSlotWriter(
            cluster=self.cluster,
            topic=self._topic,
            topics=self.topics,
            transaction_timeout_ms=int(self._timeout / timedelta(milliseconds=1)),
            batch_limits=batch_limits(control, self.topics),
            stays=stays,
        )

    def _granted(self) -> Owner:
        if self._owner is None:
            raise ConfigurationError(
                "This Kafka sink has no generation. Nothing was asked or written. Call begin_generation() first."
            )
        return self._owner


def _topic_problems(topic: object, topics: object) -> Iterator[str]:
    if (topic is None) == (topics is None):
        yield "topic, topics: give one of them: topic= for all records, topics=[...] to route by the topic column"
        return
    if topics is not None and (isinstance(topics, str) or not isinstance(topics, Sequence) or not topics):
        yield "topics: give a list of at least one topic name"
        return
    for name in [topic] if topic is not None else list(topics if isinstance(topics, Sequence) else ()):
        if not isinstance(name, str) or not _TOPIC.fullmatch(name) or name in (".", ".."):
            yield f"topic {name!r}: use 1 to 249 characters of a-z, A-Z, 0-9, '.', '_' and '-', not '.' or '..'"
        elif name == RECEIPT_TOPIC:
            yield f"topic {name!r}: keeps the receipts and stays empty; write to another topic"


def _policy_problems(on_lost: object, delivery: object) -> Iterator[str]:
    if on_lost not in ("replay", "halt", "skip"):
        yield f"on_lost: {on_lost!r} is none of 'replay', 'halt', 'skip'"
    if delivery not in ("exactly_once", "at_least_once"):
        yield f"delivery: {delivery!r} is neither 'exactly_once' nor 'at_least_once'"


def _timeout_problems(timeout: Duration | None) -> Iterator[str]:
    if timeout is None:
        return
    try:
        given = as_duration(timeout)
    except (TypeError, ValueError) as error:
        yield f"transaction_timeout: {error}"
        return
    if not timedelta(seconds=1) <= given <= _LONGEST_TIMEOUT:
        yield f"transaction_timeout: {given} is not between 1 s and {_LONGEST_TIMEOUT}"
