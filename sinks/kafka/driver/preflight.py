"""Checks this sink's settings against the live brokers and returns all unsafe ones together."""

import importlib.util
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from kafka.protocol.producer import InitProducerIdRequest

from onceward.connections.cluster import KafkaCluster
from onceward.connections.codes import ErrorCode
from onceward.connectors.interfaces import Finding, Risk, Severity
from onceward.sinks.kafka.control.brokers import (
    BATCH_LIMIT,
    POLICY,
    Resource,
    broker_settings,
    create_topic,
    known_brokers,
    requires_keys,
    settings,
    topic_facts,
)
from onceward.sinks.kafka.control.claim_offsets import METADATA_BYTES, METADATA_LIMIT
from onceward.sinks.kafka.control.clock import broker_backoff
from onceward.sinks.kafka.control.control_plane import TOO_FEW_BROKERS, TRANSACTIONS_TOPIC, ControlPlane
from onceward.sinks.kafka.control.outcomes import EndAnswer, classify, describe_code
from onceward.sinks.kafka.control.receipts import OFFSETS_TOPIC, RECEIPT_TOPIC, read_offsets
from onceward.sinks.kafka.control.transactions import Code, Transaction, Transactions
from onceward.sinks.kafka.errors import ControlPlaneError
from onceward.sinks.kafka.executor.producers import batch_bytes
from onceward.sinks.kafka.identifiers import TransactionalId, claim_name
from onceward.sinks.kafka.timeouts import NEVER

__all__ = ["RESTART_ALLOWANCE", "SinkCheck", "examine", "transaction_timeout"]

RESTART_ALLOWANCE = timedelta(minutes=10)
"""A pre-committed transaction must outlive the longest permitted checkpoint plus a restart of the job."""

LONGEST_DEFAULT = timedelta(minutes=15)
_CREATION_LIMIT_S = 10.0
_ANSWER_LIMIT_S = 10.0

_CAP = "transaction.max.timeout.ms"
_TWO_PHASE = "transaction.two.phase.commit.enable"
_NEVER_VERSION = 6
_STATE_LOG = ("transaction.state.log.replication.factor", "transaction.state.log.min.isr")
_COORDINATORS: Mapping[str, str] = {
    TRANSACTIONS_TOPIC: _STATE_LOG[0],
    OFFSETS_TOPIC: "offsets.topic.replication.factor",
}
"""Topic of coordinators -> the brokers' setting with which they create it."""

_OURS: Mapping[str, tuple[str, ...]] = {
    "acks": ("all", "-1"),
    "request.required.acks": ("all", "-1"),
    "enable.idempotence": ("true",),
    "transactional.id": (),
    "transaction.timeout.ms": (),
    "delivery.timeout.ms": (),
    "message.timeout.ms": (),
    "delivery.report.only.error": ("true",),
    "partitioner": ("murmur2_random",),
    "retries": (),
    "message.send.max.retries": (),
    "max.in.flight": ("1", "2", "3", "4", "5"),
    "max.in.flight.requests.per.connection": ("1", "2", "3", "4", "5"),
}
"""Settings that exactly-once depends on, and their permitted values."""


@dataclass(frozen=True, kw_only=True)
class SinkCheck:
    """The sink to check and its settings."""

    cluster: KafkaCluster
    job: str | None
    """None: what depends on the job's name is not checked."""
    sink: str
    topics: Sequence[str]
    checkpoint_timeout: timedelta
    transaction_timeout: timedelta | None
    """The user's value; None for the default."""
    transactional: bool = True
    """Whether this run writes transactions. Those of earlier runs are settled and swept in any case."""
    starts: bool = True
    """False: no job starts, a person only asks. Nothing is created, and a topic may be an input as well."""


def examine(control: ControlPlane, check: SinkCheck) -> list[Finding]:
    """Return all findings. Creates the receipts' topic if it is missing and a job starts, nothing else. Raises
    ControlPlaneError."""
    return [
        *_settings(check.cluster),
        *_topics(control, check),
        *_receipts(control, check),
        *_internal_topics(control, check),
        *_metadata_limit(control),
        *(missing := list(_missing_coordinators(control))),
        *(_rights(control, check, check.job) if check.job is not None and not missing else ()),
        *(_timeouts(control, check) if check.transactional else ()),
        *_state_log(control),
    ]


def transaction_timeout(control: ControlPlane, given: timedelta | None) -> timedelta:
    """Return the writers' timeout: ``given``, else the brokers' cap, at most 15 min (also if the cap is unknown)."""
    if given is not None:
        return given
    cap = _cap(control)
    return LONGEST_DEFAULT if cap is None else min(cap, LONGEST_DEFAULT)


def _cap(control: ControlPlane) -> timedelta | None:
    found = (broker_settings(control, [_CAP]) or {}).get(_CAP, "")
    return timedelta(milliseconds=int(found)) if found.isdigit() else None


def _settings(cluster: KafkaCluster) -> Iterator[Finding]:
    for key, allowed in _OURS.items():
        value = str(cluster.config.get(key, "")).lower()
        if key in cluster.config and value not in allowed:
            must = f"must be {' or '.join(allowed)}" if allowed else "is set by the sink itself"
            yield _error(
                f"cluster {cluster.name}", f"{key} is {value}, but {must} for exactly-once", f"remove {key} from config"
            )
    for message, fix in cluster.weaknesses():
        yield _warning(f"cluster {cluster.name}", message, fix)


def _topics(control: ControlPlane, check: SinkCheck) -> Iterator[Finding]:
    facts = topic_facts(control, check.topics)
    for name in check.topics:
        subject = _topic(name, check)
        topic = facts[name]
        if topic.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            yield _error(subject, f"does not exist on cluster {check.cluster.name}", "create it")
        elif topic.code != ErrorCode.NONE:
            yield _error(subject, f"cannot be looked at: {describe_code(topic.code)}", "grant WRITE on it")
        elif topic.may_write is False and check.starts:
            yield _error(subject, "the user may not write to it", "grant WRITE on it")
        else:
            if topic.may_write is False:
                yield _warning(subject, "the user may not write to it", "grant WRITE on it if a job writes to it")
            if topic.may_read is False:
                yield _warning(
                    subject,
                    "the user may not read it, so some losses cannot be proved and would halt the job in doubt",
                    "grant READ on it",
                )
            yield from _topic_settings(control, check, name, topic.replication)


def _topic(name: str, check: SinkCheck) -> str:
    return f"sink topic {name}" if check.starts else f"topic {name}"


def _topic_settings(control: ControlPlane, check: SinkCheck, name: str, replication: int) -> Iterator[Finding]:
    subject = _topic(name, check)
    if replication < 3:
        yield _warning(
            subject,
            f"has replication factor {replication}, below 3",
            "raise it, else one disk can lose data",
            Risk.REPLICATION,
        )
    keys = ("min.insync.replicas", "unclean.leader.election.enable", BATCH_LIMIT, POLICY)
    found = settings(control, Resource.TOPIC, name, keys)
    if found is None:
        yield _warning(subject, "its settings may not be read", "grant DESCRIBE_CONFIGS to have them checked")
        return
    if int(found.get(keys[0], "1")) < 2:
        yield _warning(
            subject, f"min.insync.replicas is {found.get(keys[0])}, below 2", "set it to 2", Risk.REPLICATION
        )
    if found.get(keys[1], "false") == "true":
        yield _warning(
            subject, "unclean leader election is allowed, which loses confirmed records", f"set {keys[1]}=false"
        )
    if requires_keys(found):
        yield _warning(
            subject,
            f"is compacted ({POLICY}={found[POLICY]}), so the brokers reject records without a key",
            "let the transform set the key of every row, or leave rows without one out",
        )
    limit, batch = int(found.get(BATCH_LIMIT, batch_bytes(check.cluster))), batch_bytes(check.cluster)
    if limit < batch:
        yield _warning(
            subject,
            f"takes batches of at most {limit} bytes, and the client makes them up to {batch}: they are made smaller "
            "here, which is slower, and a record that is larger fails its checkpoint",
            f"raise the topic's {BATCH_LIMIT} to {batch}",
        )


def _receipts(control: ControlPlane, check: SinkCheck) -> Iterator[Finding]:
    subject = f"receipts topic {RECEIPT_TOPIC}"
    topic = topic_facts(control, [RECEIPT_TOPIC])[RECEIPT_TOPIC]
    if topic.code == ErrorCode.NONE:
        if topic.may_read is False:
            yield _error(subject, "the user may not read it, so receipts and claims cannot be kept", "grant READ on it")
        return
    if topic.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        yield _error(subject, f"cannot be looked at: {describe_code(topic.code)}", "grant READ on it")
        return
    replication = min(3, len(control.nodes()))
    code = create_topic(control, RECEIPT_TOPIC, replication=replication, only_asked=not check.starts)
    if code != ErrorCode.NONE:
        fix = f"create it with 1 partition and replication factor {replication}, or grant CREATE"
        yield _error(subject, f"does not exist and cannot be created: {describe_code(code)}", fix)
    if code != ErrorCode.NONE or not check.starts:
        return
    limit, backoff = time.monotonic() + _CREATION_LIMIT_S, broker_backoff()
    while topic_facts(control, [RECEIPT_TOPIC])[RECEIPT_TOPIC].code != ErrorCode.NONE:
        if time.monotonic() > limit:
            yield _error(subject, f"was created, but no broker knows it after {_CREATION_LIMIT_S:.0f} s", "start again")
            return
        time.sleep(backoff.next())


def _internal_topics(control: ControlPlane, check: SinkCheck) -> Iterator[Finding]:
    """Brokers omit from their answers what the user may not describe, without an error."""
    facts = topic_facts(control, [OFFSETS_TOPIC, TRANSACTIONS_TOPIC])
    refused = {name for name, topic in facts.items() if topic.code == ErrorCode.TOPIC_AUTHORIZATION_FAILED}
    fix = "grant DESCRIBE on it"
    if OFFSETS_TOPIC in refused and check.transactional:
        message = "the user may not describe it, so the brokers do not show whether a transaction holds its receipt"
        yield _error(f"topic {OFFSETS_TOPIC}", message, fix)
    if TRANSACTIONS_TOPIC in refused:
        message = (
            "the user may not describe it, so a list of open transactions can lack those of a failed broker; what "
            "stays open holds readers back until a later list"
        )
        yield _warning(f"topic {TRANSACTIONS_TOPIC}", message, fix)


def _metadata_limit(control: ControlPlane) -> Iterator[Finding]:
    found = (broker_settings(control, [METADATA_LIMIT]) or {}).get(METADATA_LIMIT, "")
    if found.isdigit() and int(found) < METADATA_BYTES:
        yield _error(
            "brokers",
            f"{METADATA_LIMIT} is {found}, and the claim of a job, kept with an offset, needs up to {METADATA_BYTES}",
            f"raise it to at least {METADATA_BYTES}; its default is 4096",
        )


def _missing_coordinators(control: ControlPlane) -> Iterator[Finding]:
    """Brokers create the topics of their coordinators when they are first asked for one, but not while they are fewer
    than the setting says; those that are down count. Until then they answer COORDINATOR_NOT_AVAILABLE."""
    facts = topic_facts(control, _COORDINATORS)
    missing = [topic for topic in _COORDINATORS if facts[topic].code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    if not missing:
        return
    found = broker_settings(control, tuple(_COORDINATORS.values())) or {}
    nodes = len(known_brokers(control))
    for topic in missing:
        setting = _COORDINATORS[topic]
        wanted = found.get(setting, "")
        if wanted.isdigit() and int(wanted) > nodes:
            yield _error(
                f"topic {topic}",
                f"the brokers cannot create it, so no coordinator will ever answer: {setting} is {wanted}, and the "
                f"number of brokers is {nodes}",
                f"set {setting}={nodes} in the configuration of each broker and restart it, or start more brokers",
            )


def _rights(control: ControlPlane, check: SinkCheck, job: str) -> Iterator[Finding]:
    """Probe permissions without changing anything: the error code for the abort of an impossible id shows them."""
    probe = str(TransactionalId(job=job, sink=check.sink, generation=0, worker="0" * 12, n=0))
    transactions = Transactions(control)
    prefix = f"transactional ids {job}.*"
    refused = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    nothing = Transaction(id=probe, producer_id=0, epoch=0, version=1)
    if _answered(lambda: transactions.end([nothing], commit=False)[probe]) == refused:
        yield _error(prefix, "the user may not write with them", f"grant WRITE on TransactionalId prefix '{job}.'")
    if _answered(lambda: transactions.describe([probe])[probe].code) == refused:
        yield _error(prefix, "the user may not describe them", f"grant DESCRIBE on TransactionalId prefix '{job}.'")
    group = claim_name(job)
    code = _answered(lambda: read_offsets(control, [group])[group].code)
    if code in (ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorCode.TOPIC_AUTHORIZATION_FAILED):
        fix = f"grant READ on Group prefix '{job}.' and on topic {RECEIPT_TOPIC}"
        yield _error(f"consumer groups {job}.*", f"receipts and claims cannot be kept: {describe_code(code)}", fix)


def _answered(ask: Callable[[], Code]) -> Code:
    """Return the answer; retries while the brokers request it. On a new cluster the first request makes them create
    their coordinators' topics, which takes a moment. Raises ControlPlaneError after 10 s without an answer."""
    backoff, deadline = broker_backoff(), time.monotonic() + _ANSWER_LIMIT_S
    while classify(code := ask()) is EndAnswer.AGAIN:
        if time.monotonic() > deadline:
            raise ControlPlaneError(
                f"A coordinator of the sink's cluster did not answer within {_ANSWER_LIMIT_S:.0f} s: "
                f"{describe_code(code)}. Nothing was started and no data was touched. Check the brokers."
                f"{f' {TOO_FEW_BROKERS}.' if code == ErrorCode.COORDINATOR_NOT_AVAILABLE else ''}"
            )
        time.sleep(backoff.next())
    return code


def _never(control: ControlPlane, subject: str) -> Iterator[Finding]:
    """Whether the cluster takes transactions that never expire, and this environment writes them."""
    if (broker_settings(control, [_TWO_PHASE]) or {}).get(_TWO_PHASE) == "false":
        yield _error(
            subject, f"transactions never expire, and the brokers have {_TWO_PHASE}=false", "set it on all brokers"
        )
    if control.highest_version(InitProducerIdRequest) < _NEVER_VERSION:
        yield _error(
            subject,
            f"transactions never expire, and the brokers do not take InitProducerId {_NEVER_VERSION}",
            "use Kafka 4.1 or later, with unstable.api.versions.enable=true as long as KIP-939 is not released",
        )
    if importlib.util.find_spec("onceward_native") is None:
        yield _error(
            subject, "transactions never expire, and onceward-native is not installed", "install it, also on executors"
        )


def _timeouts(control: ControlPlane, check: SinkCheck) -> Iterator[Finding]:
    subject = f"sink {check.sink}"
    if check.transaction_timeout == NEVER:
        yield from _never(control, subject)
        return
    cap = _cap(control)
    timeout = transaction_timeout(control, check.transaction_timeout)
    needed = check.checkpoint_timeout + RESTART_ALLOWANCE
    if cap is None:
        yield _warning(
            subject,
            f"the brokers do not report {_CAP}; transactions request {timeout}",
            "grant DESCRIBE_CONFIGS on the cluster to have it checked",
        )
    elif timeout > cap:
        yield _error(
            subject,
            f"the transaction timeout is {timeout}, the brokers allow {cap}",
            f"lower transaction_timeout, or raise {_CAP}",
        )
    if timeout < needed:
        fix = (
            "raise transaction_timeout"
            if check.transaction_timeout is not None and (cap is None or needed <= cap)
            else f"raise the brokers' {_CAP}"
        )
        yield _error(
            subject,
            f"the transaction timeout is {timeout}, but a checkpoint may take {check.checkpoint_timeout} and a restart "
            f"{RESTART_ALLOWANCE}, together {needed}: the brokers could abort what is already completed",
            f"{fix}, or lower the checkpoint timeout",
        )


def _state_log(control: ControlPlane) -> Iterator[Finding]:
    found = broker_settings(control, _STATE_LOG)
    if found is None:
        return
    replication, in_sync = (found.get(key, "") for key in _STATE_LOG)
    if replication.isdigit() and in_sync.isdigit() and (int(replication) < 3 or int(in_sync) < 2):
        yield _warning(
            "transaction state log",
            f"has replication factor {replication} and min ISR {in_sync}, below 3 and 2",
            f"raise {_STATE_LOG[0]} and {_STATE_LOG[1]}: losing it loses the outcome of transactions",
            Risk.REPLICATION,
        )


def _error(subject: str, message: str, fix: str) -> Finding:
    return Finding(severity=Severity.ERROR, subject=subject, message=message, fix=fix)


def _warning(subject: str, message: str, fix: str, risk: Risk | None = None) -> Finding:
    return Finding(severity=Severity.WARNING, subject=subject, message=message, fix=fix, risk=risk)
