"""The Kafka sink that a program constructs."""

import re
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Literal

from onceward.common.errors import ConfigurationError
from onceward.connections.admin import reach
from onceward.connections.cluster import KafkaCluster
from onceward.connectors.interfaces import JobContext, Sink
from onceward.protocol.settings import Duration, as_duration
from onceward.protocol.values import OnLost, Participant, ParticipantName, Role
from onceward.sinks.kafka.control.control_plane import ControlPlane
from onceward.sinks.kafka.control.receipts import RECEIPT_TOPIC
from onceward.sinks.kafka.driver.session import KafkaSinkSession
from onceward.sinks.kafka.timeouts import NEVER

__all__ = ["KafkaSink"]

_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_NEVER = "never"


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
        ``"never"``: the brokers abort none, so no decided one is lost, however long the job is away (KIP-939;
        docs/how-to/tune.md).
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
        self.transactional = delivery == "exactly_once"
        self.topic = topic
        """The topic of all records; None if each record names its own."""
        self.topics: tuple[str, ...] = (topic,) if topic is not None else tuple(dict.fromkeys(topics or ()))
        """Every topic that the sink may write to."""
        self.transaction_timeout = _timeout(transaction_timeout)

    def connect(self, context: JobContext) -> KafkaSinkSession:
        """See :meth:`Sink.connect`. Raises PreflightError within about 10 s if that is impossible."""
        cluster_id = reach(self.cluster)
        return KafkaSinkSession(self, context, ControlPlane(self.cluster, links=context.links), cluster_id)


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
    if timeout is None or timeout == _NEVER:
        return
    try:
        given = as_duration(timeout)
    except (TypeError, ValueError) as error:
        yield f"transaction_timeout: {error}"
        return
    if not timedelta(seconds=1) <= given < NEVER:
        yield f'transaction_timeout: {given} is neither from 1 s to {NEVER} nor "never"'


def _timeout(given: Duration | None) -> timedelta | None:
    if given is None:
        return None
    return NEVER if given == _NEVER else as_duration(given)
