"""The claim: an offset commit that says which store and generation own a job (docs/protocol.md#claim).

Group ``<job>.claim``, partition 0 of the receipts' topic, offset = the newest completed checkpoint, metadata = JSON.
It is stored on the sink's cluster, where a second or wiped store would do its damage.

It is written in a transaction whose id is the group's name. InitProducerId on that id ends transactions that other
processes have open under it and fences those processes, so a claim read afterwards stays valid until this process's
own transaction commits or aborts.
"""

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias, TypeVar

from kafka.protocol.producer import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    InitProducerIdRequest,
    InitProducerIdResponse,
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
)

from onceward.connections.codes import ErrorCode
from onceward.coordinator.errors import ClaimChangedError, FencedError, HaltedError
from onceward.coordinator.killpoints import KillPoint, kill_point
from onceward.coordinator.printable import logger
from onceward.coordinator.protocol.values import CheckpointId, Claim, Generation
from onceward.sinks.kafka.control.clock import Clock, broker_backoff
from onceward.sinks.kafka.control.control_plane import ControlPlane, CoordinatorKind, Located, NoAnswer, Request, Waves
from onceward.sinks.kafka.control.fencing import PATIENCE_S
from onceward.sinks.kafka.control.hanging import LOOK_INTERVAL_S, Hanging, finish
from onceward.sinks.kafka.control.outcomes import EndAnswer, classify, describe_code
from onceward.sinks.kafka.control.receipts import RECEIPT_PARTITION, RECEIPT_TOPIC, Offset, read_offsets
from onceward.sinks.kafka.control.transactions import OVER, Code, State, Transactions, code_of, end_txn_version
from onceward.sinks.kafka.errors import ControlPlaneError
from onceward.sinks.kafka.identifiers import claim_name

__all__ = ["ClaimHolder", "read_claim"]

_log = logger("onceward.kafka")

_T = TypeVar("_T")

_VERSION = 2
_TIMEOUT_MS = 10_000
"""Timeout of a transaction that takes milliseconds; no process waits for it to expire."""
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
_UNKNOWN = frozenset({ErrorCode.UNKNOWN_SERVER_ERROR, ErrorCode.REQUEST_TIMED_OUT})
"""Error codes after which a request may still be carried out."""

_Answer: TypeAlias = (
    AddOffsetsToTxnResponse | EndTxnResponse | InitProducerIdResponse | TxnOffsetCommitResponse | NoAnswer
)


def read_claim(control: ControlPlane, job: str, clock: Clock) -> Claim | None:
    """Return the claim on ``job``, or None if it was never claimed (or the claim expired).

    A claim that is being written at this moment may be missing: only a :class:`ClaimHolder` sees it.
    Raises ControlPlaneError if the brokers do not answer within 30 s, HaltedError if the claim is unreadable.
    """
    group = claim_name(job)
    deadline = clock.monotonic() + PATIENCE_S
    backoff = broker_backoff()
    while True:
        offset = _offset(control, group, stable=False)
        if offset.code == ErrorCode.NONE:
            return _parse(job, offset)
        if classify(offset.code) is EndAnswer.DOUBT or clock.monotonic() >= deadline:
            raise _failed("read", job, offset.code)
        clock.wait(backoff.next())


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
        self._raising = False
        """Whether the commit itself begins the next epoch (transaction.version 2). Offsets then need no announcement,
        and the next write no InitProducerId (KIP-890)."""
        self._held: Claim | None = None
        self._prepared: Claim | None = None
        self._places: dict[CoordinatorKind, Located] = {}
        self._unended_since: float | None = None
        """Since when a claim is hidden although the brokers report its transaction as ended."""
        self._abandoned = False
        """Whether a transaction that was open under the id was fenced by this process."""

    def take(self, claim: Claim, seen: Collection[Claim]) -> None:
        """Replace one of ``seen`` by ``claim``, or write it where no claim exists.

        Raises ClaimChangedError if the present claim is another one, ControlPlaneError if the brokers do not confirm
        within 30 s, HaltedError for an unreadable claim.
        """
        deadline = self._clock.monotonic() + PATIENCE_S
        code = self._write_over(claim, seen, lambda: self._clock.monotonic() >= deadline)
        if code != ErrorCode.NONE:
            raise _failed("write", self._job, code)

    def prepare(self, claim: Claim) -> None:
        """Do the part of :meth:`renew` that can be done ahead. Reports no failure; :meth:`renew` then starts over."""
        if self._stage(claim) == ErrorCode.NONE:
            self._prepared = claim

    def renew(
        self,
        claim: Claim,
        give_up: Callable[[], bool] = lambda: False,
        *,
        run: Callable[[Waves[Code]], Code] | None = None,
    ) -> bool:
        """Replace the claim written last by ``claim``, without a time limit; return False once ``give_up()`` is true.

        ``run``: sends the request that commits a prepared claim; it may send others at the same time.

        Raises FencedError if the present claim is another one, ControlPlaneError if the brokers refuse, HaltedError.
        """
        held = self._held
        assert held is not None, "taken before it is renewed"
        backoff = broker_backoff()
        while classify(code := self._write(claim, run)) is EndAnswer.AGAIN and self._producer is not None:
            if give_up():
                return False
            self._clock.wait(backoff.next())  # markers of the last write are pending, or a coordinator moves
        if code == ErrorCode.NONE:
            self._held = claim
            return True
        try:
            return self._write_over(claim, (held,), give_up, look=code in _REFUSED) == ErrorCode.NONE
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
            if classify(code) is EndAnswer.DOUBT and code not in (*_REFUSED, ErrorCode.UNSTABLE_OFFSET_COMMIT):
                raise _failed("write", self._job, code)
            if give_up():
                return code
            self._clock.wait(min(looking.next(), left) if left > 0 else fencing.next())

    def _attempt(self, claim: Claim, seen: Collection[Claim], look: bool) -> Code:
        # Read first, without fencing: fencing would end a transaction of the rightful holder.
        for fenced in (False, True) if look else (True,):
            if fenced and not look and (code := self._end_what_hangs()) != ErrorCode.NONE:
                return code
            if fenced and (code := self._fence()) != ErrorCode.NONE:
                return code
            offset = _offset(self._control, self._name, stable=True)
            if offset.code == ErrorCode.UNSTABLE_OFFSET_COMMIT and not fenced:
                self._refuse_newer(claim)
            if offset.code != ErrorCode.NONE:
                return offset.code
            found = _parse(self._job, offset)
            if fenced and found == claim:
                return ErrorCode.NONE  # an earlier, unanswered attempt was carried out
            if found is not None and found != claim and found not in seen:
                raise _taken_over(self._job, claim, found)
        kill_point(KillPoint.DRIVER_BEFORE_CLAIM)
        return self._write(claim)

    def _refuse_newer(self, claim: Claim) -> None:
        """Raise ClaimChangedError if a newer generation has the claim. Its next one is under way most of the time, and
        fencing would end that. What is found may be older than the claim that was written last, whose marker is on its
        way: an older generation, or another store, proves nothing."""
        offset = _offset(self._control, self._name, stable=False)
        found = _parse(self._job, offset) if offset.code == ErrorCode.NONE else None
        if found is not None and found.store_id == claim.store_id and found.generation > claim.generation:
            raise _taken_over(self._job, claim, found)

    def _end_what_hangs(self) -> Code:
        """End a claim whose marker the brokers have skipped (docs/protocol.md#skipped-markers) as they had decided,
        before a fence makes them forget that. Returns NONE if none hangs. Raises HaltedError if the outcome is not
        known any more."""
        view = Transactions(self._control).describe([self._name])[self._name]
        if view.code != ErrorCode.NONE or view.state not in OVER:
            self._abandoned = self._abandoned or view.state is State.ONGOING
            self._unended_since = None
            return ErrorCode.NONE
        if _offset(self._control, self._name, stable=True).code != ErrorCode.UNSTABLE_OFFSET_COMMIT:
            self._unended_since = None
            return ErrorCode.NONE
        now = self._clock.monotonic()
        self._unended_since = now if self._unended_since is None else self._unended_since
        if now - self._unended_since < LOOK_INTERVAL_S:
            return ErrorCode.UNSTABLE_OFFSET_COMMIT
        if view.state is State.EMPTY and not self._abandoned:
            raise HaltedError(
                f"The claim on job {self._job} cannot be read: the brokers ended its last transaction without a "
                "marker, and do not know any more whether it was committed. No record was read or written. If this "
                "store is the newest one of the job, discard that claim: kafka-transactions.sh find-hanging names the "
                "partition of __consumer_offsets, kafka-transactions.sh abort ends the transaction there. Then start "
                "the job again."
            )
        commit = view.state is State.COMPLETE_COMMIT
        one = Hanging(
            id=self._name,
            producer_id=view.producer_id,
            group=self._name,
            timeout_ms=_TIMEOUT_MS,
        )
        code = finish(self._control, one, view, commit=commit)
        if code == ErrorCode.NONE:
            self._unended_since = None
            _log.warning(
                "the claim on job %s was %s without a marker, so it could not be read: the brokers had skipped it, as "
                "they do without a leader. It is written now.",
                self._job,
                "committed" if commit else "aborted",
            )
        return code

    def _fence(self) -> Code:
        """End what other processes have open. Returns CONCURRENT_TRANSACTIONS until that has ended."""
        self._producer, self._prepared = None, None
        try:
            self._raising = end_txn_version(self._control) >= 5
        except ControlPlaneError as error:
            return NoAnswer(why=str(error))
        return self._initialise((-1, -1))

    def _initialise(self, expected: tuple[int, int]) -> Code:
        """Get a new epoch after the ``expected`` one, refused if there is a newer one; (-1, -1) after any."""
        request = InitProducerIdRequest(
            transactional_id=self._name,
            transaction_timeout_ms=_TIMEOUT_MS,
            producer_id=expected[0],
            producer_epoch=expected[1],
            max_version=5,
        )
        answer: InitProducerIdResponse | NoAnswer = self._run(self._asking(CoordinatorKind.TRANSACTION, request))
        code = _code(answer)
        if code == ErrorCode.NONE and not isinstance(answer, NoAnswer):
            self._producer, self._used = (int(answer.producer_id), int(answer.producer_epoch)), False
        elif code == ErrorCode.UNKNOWN_SERVER_ERROR:
            # The step to the producer's last epoch was made, and its answer was lost: brokers refuse to repeat it
            # (TransactionMetadata.prepareIncrementProducerEpoch). Only fencing gets another producer id.
            self._producer = None
        return code

    def _write(self, claim: Claim, run: Callable[[Waves[Code]], Code] | None = None) -> Code:
        """Make one attempt under the present epoch. ``run``: sends its last request."""
        if self._prepared != claim and (code := self._stage(claim)) != ErrorCode.NONE:
            return code
        self._prepared = None
        kind = CoordinatorKind.TRANSACTION
        return (run or self._run)(self._sending(kind, EndTxnRequest, committed=True, **self._versions))

    def _stage(self, claim: Claim) -> Code:
        """Do all but the commit. Discards a write that was staged before and not committed."""
        self._prepared = None
        # A new epoch keeps delayed requests of the last write out of this transaction.
        if self._producer is not None and self._used and (code := self._initialise(self._producer)) != ErrorCode.NONE:
            return code
        self._used = True
        if not self._raising:
            code = self._send(CoordinatorKind.TRANSACTION, AddOffsetsToTxnRequest, group_id=self._name, max_version=3)
            if code != ErrorCode.NONE:
                return code
        offset = _offset_commit(self._name, claim)
        return self._send(CoordinatorKind.GROUP, TxnOffsetCommitRequest, **offset, **self._versions)

    @property
    def _versions(self) -> Mapping[str, int]:
        """Return those of EndTxn and TxnOffsetCommit. Up to 4 they mean the same at every transaction.version, and keep
        the epoch unchanged."""
        lowest, highest = (5, 5) if self._raising else (3, 4)
        return {"min_version": lowest, "max_version": highest}

    def _run(self, operation: Waves[_T]) -> _T:
        return self._control.run(operation)[0]

    def _send(self, kind: CoordinatorKind, request: type[Request], **fields: object) -> Code:
        return self._run(self._sending(kind, request, **fields))

    def _sending(self, kind: CoordinatorKind, request: type[Request], **fields: object) -> Waves[Code]:
        if self._producer is None:
            return NoAnswer(why="an earlier request was not answered")
        producer_id, epoch = self._producer
        sent = request(transactional_id=self._name, producer_id=producer_id, producer_epoch=epoch, **fields)
        answer = yield from self._asking(kind, sent)
        code = _code(answer)
        if self._raising and code == ErrorCode.NONE and request is EndTxnRequest:
            self._producer, self._used = (int(answer.producer_id), int(answer.producer_epoch)), False
        if isinstance(code, NoAnswer) or code in _UNKNOWN:
            # It may still be carried out, whatever is sent after it: only a new epoch prevents that.
            self._producer = None
        return code

    def _asking(self, kind: CoordinatorKind, request: Request) -> Waves[Any]:
        if kind not in self._places:
            self._places[kind] = (yield from self._control.locating(kind, [self._name]))[self._name]
        answer: _Answer = yield from self._control.asking_located(self._places[kind], request)
        if _code(answer) != ErrorCode.NONE:
            del self._places[kind]  # the coordinator may have moved
        return answer


def _offset_commit(group: str, claim: Claim) -> dict[str, object]:
    topic = TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic
    document = {
        "version": _VERSION,
        "store": claim.store_id,
        "generation": claim.generation,
        "completed": claim.completed,
        "holder": claim.holder,
        "amendment": claim.amendment,
    }
    partition = topic.TxnOffsetCommitRequestPartition(
        partition_index=RECEIPT_PARTITION,
        committed_offset=claim.completed,
        committed_leader_epoch=-1,
        committed_metadata=json.dumps(document, separators=(",", ":")),
    )
    return {
        "group_id": group,
        "generation_id": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [topic(name=RECEIPT_TOPIC, partitions=[partition])],
    }


def _offset(control: ControlPlane, group: str, *, stable: bool) -> Offset:
    return read_offsets(control, [group], stable=stable)[group]


def _code(answer: _Answer) -> Code:
    if hasattr(answer, "topics"):  # TxnOffsetCommit answers for each partition
        return int(answer.topics[0].partitions[0].error_code)
    return code_of(answer)


def _taken_over(job: str, claim: Claim, found: Claim) -> ClaimChangedError:
    return ClaimChangedError(
        f"Job {job} was claimed by store {found.store_id} for generation {found.generation}, while this process runs "
        f"generation {claim.generation} from store {claim.store_id}: it was taken over. What is settled stays; nothing "
        "further is written. Stop this process; or stop the other one and start this one again: the refusal names the "
        f"claim, and onceward adopt {job} permits it."
    )


def _failed(verb: str, job: str, code: Code) -> ControlPlaneError:
    missing: dict[int, str] = {
        ErrorCode.TOPIC_AUTHORIZATION_FAILED: f"READ on Topic {RECEIPT_TOPIC!r}",
        ErrorCode.GROUP_AUTHORIZATION_FAILED: f"READ on Group prefix '{job}.'",
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: f"WRITE on TransactionalId prefix '{job}.'",
    }
    right = None if isinstance(code, NoAnswer) else missing.get(code)
    advice = f"Check the brokers, and that topic {RECEIPT_TOPIC!r} exists." if right is None else f"Grant {right}."
    return ControlPlaneError(
        f"Could not {verb} the claim of job {job}: {describe_code(code)}. No data was changed. {advice}"
    )


def _parse(job: str, offset: Offset) -> Claim | None:
    if offset.offset < 0:
        return None
    try:
        raw = json.loads(offset.metadata)
        if raw["version"] != _VERSION:
            raise ValueError(f"version {raw['version']}")
        return Claim(
            store_id=str(raw["store"]),
            generation=Generation(int(raw["generation"])),
            completed=CheckpointId(int(raw["completed"])),
            holder=str(raw["holder"]),
            amendment=int(raw.get("amendment", 0)),  # earlier releases did not write it
        )
    except (KeyError, TypeError, ValueError) as error:
        raise HaltedError(
            f"The claim of job {job} in consumer group {claim_name(job)} cannot be read ({error!r}): something else "
            "wrote there, or a newer release. Nothing was changed. Find out what uses that group, or use that release."
        ) from error
