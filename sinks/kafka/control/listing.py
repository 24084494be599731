"""Lists a job's open transactions for display: the worker that began each, its age, the time until its timeout."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from onceward.connections.codes import ErrorCode
from onceward.coordinator.pipeline.interfaces import OpenTransaction, TransactionHandle
from onceward.sinks.kafka.control.clock import Clock
from onceward.sinks.kafka.control.control_plane import ControlPlane
from onceward.sinks.kafka.control.fencing import list_open
from onceward.sinks.kafka.control.outcomes import EndAnswer, classify, describe_code
from onceward.sinks.kafka.control.receipts import OFFSETS_TOPIC
from onceward.sinks.kafka.control.transactions import State, Transactions, TransactionView
from onceward.sinks.kafka.errors import ControlPlaneError
from onceward.sinks.kafka.identifiers import TransactionalId

__all__ = ["handle_of", "open_transactions"]

_LISTED = (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT)
_NO_TIMEOUT_MS = 2**31 - 1


def handle_of(identifier: str, producer_id: int, epoch: int) -> TransactionHandle:
    """Return the handle of a transaction. The producer id and the epoch change when its id is used again."""
    return TransactionHandle(identifier, f"{producer_id}/{epoch}")


def open_transactions(control: ControlPlane, job: str, clock: Clock) -> list[OpenTransaction]:
    """Return the open and ending transactions of ``job`` on one cluster, by id; omits those that end meanwhile.

    Raises ControlPlaneError if a broker does not answer.
    """
    identifiers = list_open(control, job, clock, states=_LISTED)
    views = Transactions(control).describe([str(identifier) for identifier in identifiers])
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
        listed.append(_listed(control.cluster.name, identifier, view, now))
    return listed


def _listed(cluster: str, identifier: TransactionalId, view: TransactionView, now: datetime) -> OpenTransaction:
    age = None
    if view.started_ms >= 0:
        age = max(timedelta(0), now - datetime.fromtimestamp(view.started_ms / 1000, tz=UTC))
    left = None
    if age is not None and view.state is State.ONGOING and 0 <= view.timeout_ms < _NO_TIMEOUT_MS:
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
            "receipt": "written" if OFFSETS_TOPIC in view.partitions else "none",
            "partitions": ", ".join(_written(view)) or "none",
        },
    )


def _written(view: TransactionView) -> Iterator[str]:
    for topic, partitions in sorted(view.partitions.items()):
        if topic != OFFSETS_TOPIC:
            yield from (f"{topic}-{partition}" for partition in partitions)
