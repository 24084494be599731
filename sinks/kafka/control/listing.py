"""Lists a job's open transactions for display: the worker that began each, its age, the time until its timeout."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from onceward.connections.codes import ErrorCode
from onceward.protocol.committing import OpenTransaction, TransactionHandle
from onceward.sinks.kafka.control.brokers import topic_facts
from onceward.sinks.kafka.control.clock import Clock
from onceward.sinks.kafka.control.control_plane import ControlPlane
from onceward.sinks.kafka.control.fencing import list_open
from onceward.sinks.kafka.control.outcomes import EndAnswer, classify, describe_code
from onceward.sinks.kafka.control.receipts import OFFSETS_TOPIC
from onceward.sinks.kafka.control.transactions import State, Transactions, TransactionView
from onceward.sinks.kafka.errors import ControlPlaneError
from onceward.sinks.kafka.identifiers import TransactionalId
from onceward.sinks.kafka.timeouts import NEVER_MS

__all__ = ["handle_of", "open_transactions"]

_LISTED = (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT)


def handle_of(identifier: str, producer_id: int, epoch: int) -> TransactionHandle:
    """Return the handle of a transaction. The producer id and the epoch change when its id is used again."""
    return TransactionHandle(identifier, f"{producer_id}/{epoch}")


def open_transactions(control: ControlPlane, job: str, clock: Clock) -> list[OpenTransaction]:
    """Return the open and ending transactions of ``job`` on one cluster, by id; omits those that end meanwhile.

    Raises ControlPlaneError if a broker does not answer.
    """
    identifiers = list_open(control, job, clock, states=_LISTED)
    views = Transactions(control).describe([str(identifier) for identifier in identifiers])
    offsets = topic_facts(control, [OFFSETS_TOPIC])[OFFSETS_TOPIC] if identifiers else None
    now = clock.now()
    listed: list[OpenTransaction] = []
    for identifier in identifiers:
        view = views[str(identifier)]
        if view.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND or (
            view.code == ErrorCode.NONE and view.state not in _LISTED
        ):
            continue
        if view.code != ErrorCode.NONE:
            advice = (
                "Ask again." if classify(view.code) is EndAnswer.AGAIN else "Check the rights on transactional ids."
            )
            raise ControlPlaneError(
                f"The brokers list transaction {identifier} as open and do not describe it: "
                f"{describe_code(view.code)}. Nothing was changed. {advice}"
            )
        shown = offsets is not None and offsets.code != ErrorCode.TOPIC_AUTHORIZATION_FAILED
        listed.append(_listed(control.cluster.name, identifier, view, now, receipts_shown=shown))
    return listed


def _listed(
    cluster: str, identifier: TransactionalId, view: TransactionView, now: datetime, *, receipts_shown: bool
) -> OpenTransaction:
    age = None
    if view.started_ms >= 0:
        age = max(timedelta(0), now - datetime.fromtimestamp(view.started_ms / 1000, tz=UTC))
    left = None
    if age is not None and view.state is State.ONGOING and 0 <= view.timeout_ms < NEVER_MS:
        left = max(timedelta(0), timedelta(milliseconds=view.timeout_ms) - age)
    return OpenTransaction(
        handle=handle_of(str(identifier), view.producer_id, view.epoch),
        cluster=cluster,
        participant=identifier.sink,
        generation=identifier.generation,
        state=view.state.value,
        age=age,
        left=left,
        details={
            "worker": identifier.worker,
            # With a receipt it may be pre-committed: only a decision shows whether it may be aborted.
            "receipt": _receipt(view, shown=receipts_shown),
            "partitions": ", ".join(_written(view)) or "none",
        },
    )


def _receipt(view: TransactionView, *, shown: bool) -> str:
    if not shown:
        return f"unknown, grant DESCRIBE on topic {OFFSETS_TOPIC}"
    return "written" if OFFSETS_TOPIC in view.partitions else "none"


def _written(view: TransactionView) -> Iterator[str]:
    for topic, partitions in sorted(view.partitions.items()):
        if topic != OFFSETS_TOPIC:
            yield from (f"{topic}-{partition}" for partition in partitions)
