"""A claim whose marker the brokers have skipped cannot be read (docs/protocol.md#skipped-markers)."""

from onceward.common.errors import HaltedError
from onceward.connections.codes import ErrorCode
from onceward.sinks.kafka.control.claim_offsets import offset_of
from onceward.sinks.kafka.control.clock import Clock
from onceward.sinks.kafka.control.control_plane import ControlPlane
from onceward.sinks.kafka.control.finishing import LOOK_INTERVAL_S, Finishing
from onceward.sinks.kafka.control.hanging import Hanging
from onceward.sinks.kafka.control.transactions import (
    OVER,
    PREPARED,
    Code,
    State,
    Transaction,
    Transactions,
    TransactionView,
)
from onceward.sinks.kafka.identifiers import claim_name

__all__ = ["TIMEOUT_MS", "HiddenClaim"]

TIMEOUT_MS = 10_000
"""Timeout of a transaction that takes milliseconds; no process waits for it to expire."""
_COMMITS_MS, _ABORTS_MS = TIMEOUT_MS + 1, TIMEOUT_MS + 2
"""Timeouts of a transaction that ends a hidden claim. It makes the brokers forget what they had decided, and they
report its timeout, the only value of ours that they keep with an open transaction: if this process dies in the middle,
the next one knows the decision."""

_ATTEMPTS = 5
"""Ends without effect before no end can have any."""


class HiddenClaim:
    """Ends the claim of one job as the brokers had decided, before a fence makes them forget that."""

    def __init__(self, control: ControlPlane, job: str, clock: Clock) -> None:
        self._control = control
        self._job = job
        self._name = claim_name(job)
        self._clock = clock
        self._finishing = Finishing(control, clock)
        self._forgotten_since: float | None = None
        """Since when each look has shown a claim that stays hidden, and whose outcome the brokers have forgotten."""

    def end(self, committed: tuple[int, int] | None = None) -> Code:
        """Return NONE once the id may be fenced. Raises HaltedError if the outcome is not known any more.

        ``committed``: the pair (producer id, epoch) under which the brokers confirmed this process's last commit."""
        view = Transactions(self._control).describe([self._name])[self._name]
        if view.code == ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:
            return ErrorCode.NONE
        if view.code != ErrorCode.NONE:
            return view.code
        if view.state in PREPARED:
            return ErrorCode.CONCURRENT_TRANSACTIONS
        is_open = view.state is State.ONGOING
        if is_open and (view.producer_id, view.epoch) == committed:
            # A late request has reopened it. An abort would put the claim before it back.
            own = Transaction(id=self._name, producer_id=view.producer_id, epoch=view.epoch, version=4)
            code = Transactions(self._control).end([own], commit=True)[self._name]
            return ErrorCode.CONCURRENT_TRANSACTIONS if code == ErrorCode.NONE else code
        if is_open and view.timeout_ms != _COMMITS_MS:
            return ErrorCode.NONE  # aborted by the fence, and looked at then
        code = offset_of(self._control, self._name, stable=True).code
        if code == ErrorCode.NONE:
            self._forgotten_since = None
            self._finishing.shown(self._name)
            return ErrorCode.NONE
        if code != ErrorCode.UNSTABLE_OFFSET_COMMIT:
            return code  # unknown, and not shown
        if Transactions(self._control).describe([self._name])[self._name] != view:
            # Another process writes the claim.
            self._forgotten_since = None
            self._finishing.wait()
            return ErrorCode.CONCURRENT_TRANSACTIONS
        if self._finishing.written >= _ATTEMPTS:
            raise self._lost("it is of an earlier producer id, or the brokers skip its marker again and again")
        if (commit := _decided(view)) is None:
            # A process that writes claims between all our looks ends with these; a hidden claim stays.
            now = self._clock.monotonic()
            self._forgotten_since = now if self._forgotten_since is None else self._forgotten_since
            if now - self._forgotten_since >= LOOK_INTERVAL_S:
                raise self._lost("the brokers do not know any more whether it was committed")
            return ErrorCode.UNSTABLE_OFFSET_COMMIT
        one = Hanging(
            id=self._name,
            producer_id=view.producer_id,
            group=self._name,
            timeout_ms=_COMMITS_MS if commit else _ABORTS_MS,
        )
        why = self._finishing.look(one, view, commit=commit)
        if why is not None:
            raise self._lost(why)
        return ErrorCode.UNSTABLE_OFFSET_COMMIT

    def _lost(self, why: str) -> HaltedError:
        return HaltedError(
            f"The claim on job {self._job} cannot be read: the brokers ended its last transaction without a marker, "
            f"and none can be written: {why}. No record was read or written. If this store is the newest one of the "
            "job, discard that claim: kafka-transactions.sh find-hanging names the partition of __consumer_offsets, "
            "kafka-transactions.sh abort ends the transaction there. Then start the job again."
        )


def _decided(view: TransactionView) -> bool | None:
    """Return whether the brokers had decided to commit; None if they have forgotten it."""
    if view.state in OVER - {State.EMPTY}:
        return view.state is State.COMPLETE_COMMIT
    return view.timeout_ms == _COMMITS_MS if view.timeout_ms in (_COMMITS_MS, _ABORTS_MS) else None
