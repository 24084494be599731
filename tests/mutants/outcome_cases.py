"""Hunts for bugs of the proofs: one committable at modelled brokers, to which anything may happen."""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from kafka.protocol.admin import DeleteGroupsRequest
from kafka.protocol.producer import InitProducerIdRequest, WriteTxnMarkersRequest

from onceward.common.errors import FencedError
from onceward.protocol.values import CheckpointId, JobName, Outcome, Settlement
from onceward.sinks.kafka.control.clock import Clock
from onceward.sinks.kafka.control.committables import KafkaCommittable, TopicRecords
from onceward.sinks.kafka.control.control_plane import CoordinatorKind
from onceward.sinks.kafka.control.system import KafkaSystem
from onceward.sinks.kafka.control.transactions import State, Transaction
from tests.mutants.breaking import Break
from tests.mutants.mutant import Finding
from tests.simulation.checker import Invariant
from tests.support.documents import author
from tests.support.kafka_model import AddOffsets, Call, CommitOffsets, DirectTransport, Offset, Settings, SimControl
from tests.support.kafka_model.bench import OUT, Bench, Ids, init_request

__all__ = ["Neighbours", "OutcomeCases"]

_ID = "orders.sink.1.0123abcd.0"
_OTHER = ("out", 1)
"""The output partition besides ``OUT``."""
_START = datetime(2026, 1, 1, tzinfo=UTC)
_ROUNDS = 40
"""Rounds of the committer before the test makes it give up."""


_OPENINGS = (
    (),
    ("committed", "taken over"),
    ("committed", "taken over", "a minute or two pass"),
    ("committed", "a moment passes", "the receipt is deleted", "taken over"),
    ("aborted", "another program writes", "another program commits"),
    ("aborted", "another program writes", "another program commits", "the records are deleted"),
    ("a tool aborts a part",),
    ("a tool aborts a part", "committed"),
    ("a tool aborts a part", "a tool aborts the other part", "committed"),
)
"""First steps to situations in which the outcome is hard to prove."""


@dataclass(frozen=True, kw_only=True)
class OutcomeCases:
    """A committable is committed, aborted, timed out, hidden or overtaken; then its outcome is requested.

    The reported outcome must be true. In doubt always counts as true.
    """

    name: str = "fates of a committable"
    most: int

    def find(self, breaks: Break) -> Finding | None:
        with breaks():
            for number in range(1, self.most + 1):
                found = _Fate(Random(number)).live()
                if found is not None:
                    return Finding(invariant=found[0], text=found[1], effort=f"{number} fates")
        return None


class _Fate:
    def __init__(self, random: Random) -> None:
        self._random = random
        self._version = random.choice((4, 5))
        self._bench = Bench(
            Settings(
                brokers=(1, 2, 3),
                transaction_version=self._version - 3,
                timeout_scan_s=1.0,
                offsets_retention_minutes=random.choice((1, 7 * 24 * 60)),
                offsets_scan_s=5.0,
            )
        )
        self._bench.transport = _AnyBroker(random)
        self._bench.control = SimControl(self._bench.cluster, self._bench.transport)
        if random.random() < 0.5:
            older = self._bench.init(_ID)
            self._write(older, b"older", "older token")
            self._bench.end(older, version=self._version)
            self._bench.wait(0.1)
        self._ours = self._bench.init(_ID)
        if random.random() < 0.5:
            self._move()
        self._write(self._ours, b"ours", "token")
        self._moment = self._now()
        self._other: Ids | None = None
        self._torn = False

    def live(self) -> tuple[Invariant, str] | None:
        random, done = self._random, list[str]()
        steps: dict[str, Callable[[], object]] = {
            "committed": lambda: self._bench.end(self._ours, commit=True, version=self._version),
            "aborted": lambda: self._bench.end(self._ours, commit=False, version=self._version),
            "a moment passes": lambda: self._bench.wait(random.random()),
            "a minute or two pass": lambda: self._bench.wait(30 + random.random() * 90),
            "taken over": lambda: self._take_over(),
            "another program writes": self._overtake,
            "another program commits": lambda: self._other and self._bench.end(self._other, version=self._version),
            "another program aborts": lambda: (
                self._other and self._bench.end(self._other, commit=False, version=self._version)
            ),
            "another id hides the receipt": self._hide,
            "the receipt is deleted": lambda: self._bench.ask(
                DeleteGroupsRequest(groups_names=[_ID]), kind=CoordinatorKind.GROUP, key=_ID
            ),
            "moved": self._move,
            "the records are deleted": self._delete_records,
            "a tool aborts a part": lambda: self._abort_part(OUT),
            "a tool aborts the other part": lambda: self._abort_part(_OTHER),
        }
        for step in (*random.choice(_OPENINGS), *random.choices(list(steps), k=random.randint(0, 4))):
            done.append(step)
            steps[step]()
        was_open = self._is_open()
        settlement = self._ask()
        self._bench.transport.cut = self._bench.transport.deaf = lambda _call: False
        self._bench.wait(10)
        visible = [b"ours" in self._bench.visible(partition) for partition in (OUT, _OTHER)]
        how = f"after {', '.join(done) or 'nothing'}"
        match settlement:
            case Settlement(outcome=Outcome.COMMITTED) if not all(visible):
                return Invariant.I1, f"{how} it is called committed and is not: {settlement.evidence}"
            case Settlement(outcome=Outcome.LOST) if any(visible):
                return Invariant.I13, f"{how} it is called lost and is committed: {settlement.evidence}"
            case _ if was_open and self._torn and any(visible):
                return Invariant.I1, f"{how} it is committed although a part of it was gone"
            case _:
                return None

    def _is_open(self) -> bool:
        """Whether the coordinator in office would still commit ours."""
        entry = self._bench.cluster.entry(self._ours[0])
        return entry is not None and (entry.state.value, entry.producer_id, entry.epoch) == (
            State.ONGOING.value,
            *self._ours[1:],
        )

    def _ask(self) -> Settlement | None:
        random, transport = self._random, self._bench.transport
        loss = random.choice((0.0, 0.0, 0.3))
        transport.cut = lambda _call: random.random() < loss
        transport.deaf = lambda _call: random.random() < loss
        clock = Clock(
            now=lambda: _START + timedelta(seconds=transport.now()),
            monotonic=transport.now,
            wait=self._bench.wait,
        )
        rounds = iter(range(_ROUNDS))
        committer = KafkaSystem(self._bench.control, clock=clock)
        settled = committer.commit(
            author(), [self._handle().to_committable()], give_up=lambda: next(rounds, None) is None
        )
        return settled[0] if settled else None

    def _handle(self) -> KafkaCommittable:
        name, producer, epoch = self._ours
        return KafkaCommittable(
            slot=0,
            checkpoint=CheckpointId(7),
            cluster_name="simulated",
            cluster_id=self._bench.cluster.settings.cluster_id,
            transaction=Transaction(id=name, producer_id=producer, epoch=epoch, version=self._version),
            token="token",
            topics={"out": TopicRecords(records=2, partitions=(0, 1))},
            records=1,
            bytes=4,
            inputs=[],
            pre_committed=_START + timedelta(seconds=self._moment),
            timeout=timedelta(seconds=60),
        )

    def _write(self, ids: Ids, value: bytes, token: str | None) -> None:
        """Write a transaction with a record in each partition and a receipt, or as much of it as the brokers accept in
        time."""
        steps: tuple[Callable[[], int], ...] = (
            lambda: self._bench.enlist(ids, OUT, _OTHER),
            lambda: self._bench.produce(ids, (value,)),
            lambda: self._bench.produce(ids, (value,), partition=_OTHER),
            lambda: self._bench.receipt(ids, token) if token is not None else 0,
        )
        for step in steps:
            for _ in range(200):
                if step() == 0:
                    break
                self._bench.wait(0.01)

    def _delete_records(self) -> None:
        """Delete by retention, after which the log proves nothing. Skipped after a tool's abort, which could not be
        noticed then."""
        if not self._torn:
            for partition in (OUT, _OTHER):
                log = self._bench.cluster.log(partition)
                log.start = log.high_watermark

    def _abort_part(self, partition: tuple[str, int]) -> None:
        """The brokers' own tool aborts our open transaction in one partition. It checks first that one is open."""
        log = self._bench.cluster.log(partition)
        _, producer, epoch = self._ours
        if not log.in_transaction(producer, epoch) or log.start:
            return
        self._torn = True
        where = WriteTxnMarkersRequest.WritableTxnMarker.WritableTxnMarkerTopic(
            name=partition[0], partition_indexes=[partition[1]]
        )
        marker = WriteTxnMarkersRequest.WritableTxnMarker(
            producer_id=producer, producer_epoch=epoch, transaction_result=False, topics=[where], coordinator_epoch=0
        )
        self._bench.cluster.handle(log.leader, WriteTxnMarkersRequest(markers=[marker]), self._now())

    def _take_over(self, name: str = _ID) -> Ids | None:
        """Another program initialises a producer under the id, and does not retry when asked to."""
        self._bench.wait(0.05)  # lets the markers of a recent decision arrive
        answer = self._bench.ask(init_request(name, None, 60_000), key=name)
        return None if answer.error_code else (name, answer.producer_id, answer.producer_epoch)

    def _overtake(self) -> None:
        """Another program begins a transaction under the id, and does not touch our group."""
        other = self._take_over()
        if other is None:  # the open transaction is being aborted
            self._bench.wait(0.1)
            other = self._take_over()
        if other is not None:
            self._other = other
            self._write(other, b"theirs", None)

    def _hide(self) -> None:
        """Another program's transaction, under an id of its own, writes where our receipt is."""
        ids = self._take_over("another id")
        if ids is None:
            return
        enlisted = AddOffsets(transactional_id=ids[0], producer_id=ids[1], producer_epoch=ids[2], group_id=_ID)
        self._bench.ask(enlisted, key=ids[0])
        offset = {("onceward", 0): Offset(offset=7, metadata="another token")}
        request = CommitOffsets(
            transactional_id=ids[0], group_id=_ID, producer_id=ids[1], producer_epoch=ids[2], offsets=offset
        )
        self._bench.ask(request, kind=CoordinatorKind.GROUP, key=_ID)

    def _move(self) -> None:
        random = self._random
        self._bench.cluster.move_coordinator(
            random.choice((CoordinatorKind.TRANSACTION, CoordinatorKind.GROUP)),
            _ID,
            random.choice((1, 2, 3)),
            self._now(),
            stale_s=1.5,
            believers=random.sample((1, 2, 3), random.randint(0, 3)),
        )

    def _now(self) -> float:
        return self._bench.transport.now()


class _AnyBroker(DirectTransport):
    """Sends each request for any broker to a random one, so that outdated brokers are asked too."""

    def __init__(self, random: Random) -> None:
        super().__init__()
        self._random = random

    def send(self, calls: Sequence[Call]) -> list[Any]:
        return super().send([replace(call, node=call.node or self._random.choice((1, 2, 3))) for call in calls])


@dataclass(frozen=True, kw_only=True)
class Neighbours:
    """A job sweeps while others have open transactions: jobs with similar names, or its own next generation.

    The first request to abort something is lost.
    """

    name: str
    replaced: bool = False
    """True when the next generation already runs: then nothing at all may be touched."""

    def find(self, breaks: Break) -> Finding | None:
        bench = Bench()
        successor = _ID.replace(".1.", ".2.")
        theirs: tuple[str, ...] = ("orders2.sink.1.0123abcd.0", "orders-2.sink.1.0123abcd.0", "a.orders.sink", "orders")
        if self.replaced:
            theirs = (successor, *theirs)
        for name in (_ID, *theirs):
            bench.open(name)
        lost = iter((True,))
        bench.transport.cut = lambda call: isinstance(call.request, InitProducerIdRequest) and next(lost, False)
        clock = Clock(now=lambda: _START, monotonic=bench.transport.now, wait=bench.wait)
        committer = KafkaSystem(bench.control, clock=clock, generation=lambda: 1)
        with breaks(), contextlib.suppress(FencedError):
            committer.sweep(JobName("orders"))
        for name in theirs:
            if bench.view(name).state is not State.ONGOING:
                return Finding(invariant=Invariant.I1, text=f"{name} is aborted", effort="1 sweep")
        if not self.replaced and bench.view(_ID).state is State.ONGOING:
            return Finding(invariant=Invariant.I9, text=f"{_ID} stays open after a sweep", effort="1 sweep")
        return None
