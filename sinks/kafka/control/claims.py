"""The claim: an offset commit that says which store and generation own a job (docs/protocol.md#claim).

Group ``<job>.claim``, partition 0 of the receipts' topic, offset = the newest completed checkpoint, metadata = JSON.
It is stored on the sink's cluster, where a second or wiped store would do its damage.

It is written in a transaction whose id is the group's name. InitProducerId on that id ends transactions that other
processes have open under it and fences those processes, so a claim read afterwards stays valid until this process's
own transaction commits or aborts.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

from onceward.common.errors import ClaimChangedError, FencedError
from onceward.common.killpoints import KillPoint, kill_point
from onceward.connections.codes import ErrorCode
from onceward.connections.requests import NoAnswer, Request
from onceward.protocol.values import Claim
from onceward.sinks.kafka.control.claim_offsets import failed, offset_commit, offset_of, parse, taken_over
from onceward.sinks.kafka.control.clock import Clock, broker_backoff
from onceward.sinks.kafka.control.control_plane import ControlPlane, CoordinatorKind, Located, Operation
from onceward.sinks.kafka.control.fencing import PATIENCE_S
from onceward.sinks.kafka.control.hanging import LAST_EPOCH
from onceward.sinks.kafka.control.hidden_claims import TIMEOUT_MS, HiddenClaim
from onceward.sinks.kafka.control.outcomes import EndAnswer, classify
from onceward.sinks.kafka.control.transactions import Code, code_of, end_txn_version, next_epoch_request
from onceward.sinks.kafka.errors import ControlPlaneError
from onceward.sinks.kafka.identifiers import claim_name

__all__ = ["ClaimHolder"]


_MOMENT_S = 0.5
"""How long to wait for a claim that another process is writing. If it takes longer, that process is dead or cut off."""
_REFUSED = frozenset(
    {
        ErrorCode.INVALID_PRODUCER_EPOCH,
        ErrorCode.INVALID_TXN_STATE,
        ErrorCode.INVALID_PRODUCER_ID_MAPPING,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTION_ABORTABLE,
    }
)
"""Error codes for a producer that was fenced, whose id was forgotten, or whose transaction timed out."""
_FOREIGN = _REFUSED | {ErrorCode.UNSTABLE_OFFSET_COMMIT}
"""Error codes after which another process may hold the claim, or write it."""
_UNKNOWN = frozenset({ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.REQUEST_TIMED_OUT})
"""Error codes after which a request may still be carried out."""

_Answer: TypeAlias = (
    AddOffsetsToTxnResponse | EndTxnResponse | InitProducerIdResponse | TxnOffsetCommitResponse | NoAnswer
)


class ClaimHolder:
    """One process's hold on the claim of one job. Not thread-safe."""

    def __init__(self, control: ControlPlane, job: str, clock: Clock) -> None:
        self._control = control
        self._job = job
        self._name = claim_name(job)
        self._clock = clock
        self._producer: tuple[int, int] | None = None
        """Id and epoch to write with. None: other processes must be fenced first."""
        self._used = False
        """Whether a request was sent under that epoch."""
        self._version_2 = False
        """Whether the cluster's transaction.version is at least 2."""
        self._committed: tuple[int, int] | None = None
        """Id and epoch of the last commit that the brokers confirmed and that did not raise the epoch."""
        self._held: Claim | None = None
        self._prepared: Claim | None = None
        self._places: dict[CoordinatorKind, Located] = {}
        self._hidden = HiddenClaim(control, job, clock)
        self._seen = True
        """Whether the claim that was written last can be read."""

    def take(self, claim: Claim, seen: Collection[Claim]) -> None:
        """Replace one of ``seen`` by ``claim``, or write it where no claim exists.

        Raises ClaimChangedError if the present claim is another one, ControlPlaneError if the brokers do not confirm
        within 30 s, HaltedError for an unreadable claim.
        """
        deadline = self._clock.monotonic() + PATIENCE_S
        code = self._write_over(claim, seen, lambda: self._clock.monotonic() >= deadline)
        if code != ErrorCode.NONE:
            raise failed("write", self._job, code)

    def prepare(self, claim: Claim) -> None:
        """Do the part of :meth:`renew` that can be done ahead. Reports no failure; :meth:`renew` then starts over."""
        if self._stage(claim) == ErrorCode.NONE:
            self._prepared = claim

    def renew(
        self,
        claim: Claim,
        give_up: Callable[[], bool] = lambda: False,
        *,
        run: Callable[[Operation[Code]], Code] | None = None,
    ) -> bool:
        """Replace the claim written last by ``claim``, without a time limit; return False once ``give_up()`` is true.

        ``run``: sends the request that commits a prepared claim; it may send others at the same time.

        Raises FencedError if the present claim is another one, ControlPlaneError if the brokers refuse, HaltedError.
        """
        held = self._held
        assert held is not None, "taken before it is renewed"
        backoff = broker_backoff()
        code: Code = NoAnswer(why="an earlier request was not answered")
        patient = self._clock.monotonic() + _MOMENT_S
        while self._producer is not None:
            code = self._write(claim, run)
            hidden = code == ErrorCode.UNSTABLE_OFFSET_COMMIT and self._clock.monotonic() < patient
            if not hidden and classify(code) is not EndAnswer.AGAIN:
                break
            if give_up():
                return False
            self._clock.wait(backoff.next())  # markers of the last write are pending, or a coordinator moves
        if code == ErrorCode.NONE:
            self._held = claim
            return True
        try:
            return self._write_over(claim, (held,), give_up, look=code in _FOREIGN) == ErrorCode.NONE
        except ClaimChangedError as error:
            raise FencedError(str(error)) from error

    def _write_over(
        self, claim: Claim, seen: Collection[Claim], give_up: Callable[[], bool], *, look: bool = True
    ) -> Code:
        """Return NONE, or the last error code if it gave up. ``look``: another process may hold the claim."""
        looking, fencing = broker_backoff(), broker_backoff()
        patient = self._clock.monotonic() + _MOMENT_S
        while True:
            code = self._attempt(claim, seen, look)
            if code == ErrorCode.NONE:
                self._held = claim
                return code
            left = patient - self._clock.monotonic() if code == ErrorCode.UNSTABLE_OFFSET_COMMIT else 0.0
            look = code in _REFUSED or left > 0
            if classify(code) is EndAnswer.DOUBT and code not in _FOREIGN:
                raise failed("write", self._job, code)
            if give_up():
                return code
            self._clock.wait(min(looking.next(), left) if left > 0 else fencing.next())

    def _attempt(self, claim: Claim, seen: Collection[Claim], look: bool) -> Code:
        # Read first, without fencing: fencing would end a transaction of the rightful holder.
        for fenced in (False, True) if look else (True,):
            if fenced and not look and (code := self._hidden.end(self._committed)) != ErrorCode.NONE:
                return code
            if fenced and (code := self._fence()) != ErrorCode.NONE:
                return code
            offset = offset_of(self._control, self._name, stable=True)
            if offset.code == ErrorCode.UNSTABLE_OFFSET_COMMIT and not fenced:
                self._refuse_newer(claim)
            if offset.code != ErrorCode.NONE:
                return offset.code
            found = parse(self._job, offset)
            if fenced and found == claim != self._held:
                return ErrorCode.NONE  # an earlier, unanswered attempt was carried out
            self._refuse_other(claim, seen, found)
        kill_point(KillPoint.DRIVER_BEFORE_CLAIM)
        if (code := self._stage(claim)) != ErrorCode.NONE:
            return code
        # A deposed coordinator may have shown a former claim. This one leads: it has just stored offsets.
        offset = offset_of(self._control, self._name, stable=False, at=self._places[CoordinatorKind.GROUP])
        if offset.code != ErrorCode.NONE:
            return offset.code
        self._refuse_other(claim, seen, parse(self._job, offset))
        self._prepared = claim
        return self._write(claim)

    def _refuse_other(self, claim: Claim, seen: Collection[Claim], found: Claim | None) -> None:
        """Raise ClaimChangedError if ``found`` has replaced the claim. One that is older than the one held has not: it
        is shown by a deposed coordinator, or came back when brokers or a tool discarded the newer one."""
        if found is None or found == claim or found in seen:
            return
        if self._held is None or not found.is_older_than(self._held):
            raise taken_over(self._job, claim, found)

    def _refuse_newer(self, claim: Claim) -> None:
        """Raise ClaimChangedError if a newer generation has the claim. Its next one is under way most of the time, and
        fencing would end that. What is found may be older than the claim that was written last, whose marker is on its
        way: an older generation, or another store, proves nothing."""
        offset = offset_of(self._control, self._name, stable=False)
        found = parse(self._job, offset) if offset.code == ErrorCode.NONE else None
        if found is not None and found.store_id == claim.store_id and found.generation > claim.generation:
            raise taken_over(self._job, claim, found)

    def _fence(self) -> Code:
        """End what other processes have open. Returns CONCURRENT_TRANSACTIONS until that has ended."""
        self._producer, self._prepared = None, None
        try:
            self._version_2 = end_txn_version(self._control) >= 5
        except ControlPlaneError as error:
            return NoAnswer(why=str(error))
        return self._initialise((-1, -1))

    def _initialise(self, expected: tuple[int, int]) -> Code:
        """Get a new epoch after the ``expected`` one, refused if there is a newer one; (-1, -1) after any."""
        asking = self._asking(
            CoordinatorKind.TRANSACTION, next_epoch_request(self._name, timeout_ms=TIMEOUT_MS, after=expected)
        )
        answer: InitProducerIdResponse | NoAnswer = self._control.run(asking)
        code = _code(answer)
        if code == ErrorCode.NONE and not isinstance(answer, NoAnswer):
            self._producer, self._used = (int(answer.producer_id), int(answer.producer_epoch)), False
        elif code == ErrorCode.UNKNOWN_SERVER_ERROR:
            # The step to the producer's last epoch was made, and its answer was lost: brokers refuse to repeat it
            # (TransactionMetadata.prepareIncrementProducerEpoch). Only fencing gets another producer id.
            self._producer = None
        return code

    def _write(self, claim: Claim, run: Callable[[Operation[Code]], Code] | None = None) -> Code:
        """Make one attempt under the present epoch. ``run``: sends its last request."""
        if self._prepared != claim and (code := self._stage(claim)) != ErrorCode.NONE:
            return code
        self._prepared = None
        kind = CoordinatorKind.TRANSACTION
        self._seen = False
        return (run or self._control.run)(self._sending(kind, EndTxnRequest, committed=True, **self._versions))

    def _stage(self, claim: Claim) -> Code:
        """Do all but the commit. Discards a write that was staged before and not committed.

        The last claim must be there: one that is hidden would be lost if what follows it were aborted."""
        self._prepared = None
        if not self._seen and (code := offset_of(self._control, self._name, stable=True).code) != ErrorCode.NONE:
            return code
        self._seen = True
        # A new epoch keeps delayed requests of the last write out of this transaction.
        if self._producer is not None and self._used and (code := self._initialise(self._producer)) != ErrorCode.NONE:
            return code
        self._used = True
        if not self._raising:
            code = self._send(CoordinatorKind.TRANSACTION, AddOffsetsToTxnRequest, group_id=self._name, max_version=3)
            if code != ErrorCode.NONE:
                return code
        offset = offset_commit(self._name, claim)
        return self._send(CoordinatorKind.GROUP, TxnOffsetCommitRequest, **offset, **self._versions)

    @property
    def _raising(self) -> bool:
        """Whether the commit itself begins the next epoch (KIP-890). Offsets then need no announcement, and the next
        write no InitProducerId. At the last epoch it would take the producer id from the claim's id, and a claim whose
        marker is skipped could not be ended any more."""
        return self._version_2 and self._producer is not None and self._producer[1] < LAST_EPOCH

    @property
    def _versions(self) -> Mapping[str, int]:
        """Return those of EndTxn and TxnOffsetCommit. Up to 4 they mean the same at every transaction.version, and keep
        the epoch unchanged."""
        lowest, highest = (5, 5) if self._raising else (3, 4)
        return {"min_version": lowest, "max_version": highest}

    def _send(self, kind: CoordinatorKind, request: type[Request], **fields: object) -> Code:
        return self._control.run(self._sending(kind, request, **fields))

    def _sending(self, kind: CoordinatorKind, request: type[Request], **fields: object) -> Operation[Code]:
        if self._producer is None:
            return NoAnswer(why="an earlier request was not answered")
        producer_id, epoch = self._producer
        sent = request(transactional_id=self._name, producer_id=producer_id, producer_epoch=epoch, **fields)
        answer = yield from self._asking(kind, sent)
        code = _code(answer)
        if code == ErrorCode.NONE and request is EndTxnRequest:
            if self._raising:
                self._producer, self._used = (int(answer.producer_id), int(answer.producer_epoch)), False
            else:
                self._committed = self._producer
        if isinstance(code, NoAnswer) or code in _UNKNOWN:
            # It may still be carried out, whatever is sent after it: only a new epoch prevents that.
            self._producer = None
        return code

    def _asking(self, kind: CoordinatorKind, request: Request) -> Operation[Any]:
        if kind not in self._places:
            self._places[kind] = (yield from self._control.locating(kind, [self._name]))[self._name]
        answer: _Answer = yield from self._control.asking_located(self._places[kind], request)
        if _code(answer) != ErrorCode.NONE:
            del self._places[kind]  # the coordinator may have moved
        return answer


def _code(answer: _Answer) -> Code:
    if hasattr(answer, "topics"):  # TxnOffsetCommit answers for each partition
        return int(answer.topics[0].partitions[0].error_code)
    return code_of(answer)
