"""The modelled brokers in their world: the wires to them, the sink that uses them, and a reader."""

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from kafka.protocol.admin import DeleteGroupsRequest, DescribeProducersRequest
from kafka.protocol.producer import EndTxnRequest, InitProducerIdRequest, TxnOffsetCommitRequest

from onceward import KafkaCluster
from onceward.coordinator.service.systems import OpenSystem
from onceward.protocol.values import MAX_ID, Committable
from onceward.sinks.kafka.control.committables import KafkaCommittable
from onceward.sinks.kafka.control.control_plane import CoordinatorKind, NoAnswer
from onceward.sinks.kafka.control.receipts import RECEIPT_TOPIC
from onceward.sinks.kafka.control.system import KafkaSystem
from onceward.sinks.kafka.driver.reuse import ROOM
from onceward.sinks.kafka.identifiers import TransactionalId
from tests.simulation.checker import Checker, Invariant
from tests.simulation.coordinator import wall_clock
from tests.simulation.driver import virtual_clock
from tests.simulation.fault_profile import FaultProfile
from tests.simulation.network import Link
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.sink import SimulatedSink, output_of
from tests.simulation.systems import CanBeCutOff, Handle, Key
from tests.simulation.wire import Wire, answered, said
from tests.support.kafka_model.cluster import Cluster
from tests.support.kafka_model.control import SimControl
from tests.support.kafka_model.producer import SimProducer
from tests.support.kafka_model.settings import Partition, Produce, Settings
from tests.support.kafka_model.transactions import LAST_EPOCH, PREPARED, Entry, State
from tests.support.kafka_model.transport import Call

__all__ = ["Brokers"]


Transaction = tuple[str, int, int]


class Brokers(CanBeCutOff):
    """A cluster, and every process's access to it."""

    def __init__(
        self, clock: Scheduler, faults: FaultProfile, checkers: Sequence[Checker], note: Callable[[str, str], None]
    ) -> None:
        """``checkers``: of the sinks that are on this cluster."""
        self.clock = clock
        self.checkers = {checker.sink: checker for checker in checkers}
        self.described = KafkaCluster(f"{self.name}:9092", name=self.name)
        self._note = note
        self.link = Link(clock.random, faults.kafka)
        self.wires = Process("kafka", "world")
        random = clock.random
        self.cluster = Cluster(
            Settings(
                brokers=tuple(range(1, faults.brokers + 1)),
                cluster_id="simulated-cluster" if self.name == "main" else f"simulated-{self.name}",
                transaction_version=faults.transaction_version,
                timeout_scan_s=faults.timeout_scan,
                offsets_retention_minutes=faults.receipts_kept_minutes,
                last_used_epoch=lambda name: self._worn(name) if random.random() < faults.worn else -1,
                marker_delay=lambda _id, _partition: 0.001 + faults.marker_delay * random.random() ** 3,
                skips_marker=self._skips,
            )
        )
        self._logs: dict[Partition, Checker] = {}
        """The partitions of the output, and who checks what is visible there."""
        for checker in checkers:
            self.cluster.create_topic(output_of(checker.sink), faults.outputs)
            self._logs |= {(output_of(checker.sink), number): checker for number in range(faults.outputs)}
        self.cluster.create_topic(RECEIPT_TOPIC)
        self.cluster.on_marker(self._marked)
        self.cluster.on_append(self._appended)
        self._timeout = timedelta(seconds=faults.transaction_timeout)
        self._implicit = faults.implicit
        self._skew = faults.skew
        self._on_lost = faults.on_lost
        self._always_current = not faults.moves and not faults.broker_failures
        """Whether the brokers' lists are complete: no deposed leader still answers, and no new leader is missing."""
        self._read = dict.fromkeys(self._logs, 0)
        self._ended: dict[Key, bool] = {}
        """Transactions whose end the brokers confirmed -> whether committed."""
        self._mended: dict[Transaction, set[Transaction]] = {}
        """Transactions that only write skipped markers -> whose."""
        self._aborted: set[Transaction] = set()
        """Those of which a part was aborted."""
        self._begun: dict[Key, float] = {}
        """When each transaction was opened, for those with a record."""
        self._overrun: dict[Key, str] = {}
        """Transactions aborted by something other than our own requests -> by what."""
        self._looked: dict[tuple[str, int], float] = {}
        """By partition: when its producers were last described."""
        self._claiming: dict[Transaction, tuple[int, str]] = {}
        """Claims being written -> their checkpoint and holder."""
        self.claims = 0
        """Claims that were written."""
        self._claim_hidden = False
        """Whether the claim's marker is missing."""
        self.claim_forgotten = False
        """Whether another program made the brokers forget what was decided about a hidden claim: a person decides."""
        self._skipped = faults.skipped_markers
        self.skipped = 0
        """Markers that the brokers skipped."""
        self._alarm = float("inf")
        self.requests = 0
        for checker in checkers:
            checker.truth = self

    def note(self, who: str, what: str) -> None:
        self._note(who if self.name == "main" else f"{who} {self.name}", what)

    kind = "kafka"

    @property
    def name(self) -> str:
        """The cluster's, in files of systems."""
        return next(iter(self.checkers.values())).system

    @property
    def checker(self) -> Checker:
        """The checker of what concerns the whole job, or the claim here."""
        return next(iter(self.checkers.values()))

    @property
    def unsettled(self) -> frozenset[str]:
        """Transactional ids that are completed and not settled."""
        return frozenset().union(*(checker.unsettled for checker in self.checkers.values()))

    def _checker_of(self, identifier: str) -> Checker:
        """The checker of the sink that has a transactional id."""
        parsed = TransactionalId.parse(identifier)
        return self.checker if parsed is None else self.checkers[parsed.sink]

    # -- what processes get

    def sinks(self, process: Process) -> list[SimulatedSink]:
        control, checks = self.control(process), dict[int, PreCommitCheck]()
        skew = timedelta(seconds=self._skew * self.clock.random.uniform(-1, 1))
        return [
            SimulatedSink(self, control, name, checks, timeout=self._timeout, skew=skew, on_lost=self._on_lost)
            for name in self.checkers
        ]

    def opener(self, process: Process) -> OpenSystem:
        control, clock = self.control(process), virtual_clock(lambda: wall_clock(self.clock))

        def opens(_: object, *, generation: Callable[[], int | None] = lambda: None) -> KafkaSystem:
            return KafkaSystem(control, clock=clock, generation=generation)

        return opens

    def control(self, process: Process) -> SimControl:
        return SimControl(self.cluster, Wire(self, process), described=self.described)

    def producer(self, config: Mapping[str, Any], **more: Any) -> SimProducer:
        """A producer of the running process."""
        process = self.clock.running
        assert process is not None
        return SimProducer(config, cluster=self.cluster, transport=Wire(self, process), implicit=self._implicit, **more)

    # -- what is true

    def handle(self, committable: Committable) -> Handle:
        made = KafkaCommittable.of(committable)
        transaction = made.transaction
        return Handle(
            id=transaction.id,
            key=(transaction.id, transaction.producer_id, transaction.epoch),
            slot=made.slot,
            checkpoint=made.checkpoint,
            generation=int(transaction.id.split(".")[2]),
            records=made.records,
            inputs=made.inputs,
        )

    def committed(self, handle: Handle) -> bool:
        return self._ended.get(handle.key, False)

    def ended(self, handle: Handle) -> bool:
        entry = self.cluster.entry(handle.id)
        return (
            entry is None
            or entry.state is not State.ONGOING
            or (entry.id, entry.producer_id, entry.epoch) != handle.key
            # a late request opens another one under the same epoch, without the records (KIP-890)
            or handle.key in self._ended
        )

    def not_shown(self) -> list[str]:
        """Transactional ids of slots whose commit lacks a marker. Empty where brokers may be out of date: then no
        process can know."""
        if not self._always_current:
            return []
        return [
            entry.id
            for entry in self._of_slots()  # a claim is not output
            if entry.state is State.PREPARE_COMMIT or any(self._ended.get(key) for key in self._open_parts(entry))
        ]

    def _open_parts(self, entry: Entry) -> Iterator[Transaction]:
        """The transactions of the id with a part in the output that waits for its marker."""
        for partition in self._logs:
            span = self.cluster.log(partition).open_span(entry.producer_id)
            if span is not None:
                yield entry.id, entry.producer_id, span.epoch

    def _worn(self, identifier: str) -> int:
        """An epoch near the last one. A worker's id is not used again that late, so that its markers can be written."""
        room = ROOM if TransactionalId.parse(identifier) is not None else 0
        return LAST_EPOCH - room - self.clock.random.randint(1, 4)

    def _decided_by(self, key: Transaction) -> set[Transaction]:
        """The transactions that EndTxn for this one ends: itself, or, if it wrote nothing, those whose markers the
        brokers skipped."""
        entry = self.cluster.entry(key[0])
        if key in self._begun or entry is None or (entry.producer_id, entry.epoch) != key[1:]:
            return self._mended.get(key, {key})  # another process may have ended it a moment ago
        self._mended[key] = set(self._open_parts(entry))
        return self._mended[key]

    def _skips(self, identifier: str, partition: tuple[str, int]) -> bool:
        if not self._skipped:
            return False
        if self.clock.random.random() >= self._skipped:
            return False
        self.skipped += 1
        self._claim_hidden |= TransactionalId.parse(identifier) is None
        self.note("kafka", f"no marker of {identifier} in {partition[0]}-{partition[1]}")
        return True

    def why_lost(self, handle: Handle) -> str | None:
        if handle.key in self._overrun:
            return self._overrun[handle.key]
        if self.clock.now >= self._begun.get(handle.key, float("inf")) + self._timeout.total_seconds():
            return "timeout"
        return None

    def open_transactions(self) -> dict[str, str]:
        """What holds readers back: by transactional id or partition."""
        held = {
            f"{topic}-{number}": f"LSO {log.last_stable_offset}, HW {log.high_watermark}"
            for topic, number in self._logs
            if (log := self.cluster.log((topic, number))).last_stable_offset != log.high_watermark
        }
        if held:
            return held
        return {
            entry.id: entry.state.value
            for entry in self._of_slots()
            if entry.state is State.ONGOING or entry.state in PREPARED
        }

    def _of_slots(self) -> list[Entry]:
        """Transactions of slots. The claim's belongs to no checkpoint and holds no reader back."""
        return [entry for entry in self.cluster.entries() if TransactionalId.parse(entry.id) is not None]

    def pre_commit_check(self, voted: Collection[str]) -> "PreCommitCheck":
        """Return a check of the pre-commit of these ids that begins now."""
        gone = [
            name for name in voted if (entry := self.cluster.entry(name)) is None or entry.state is not State.ONGOING
        ]
        return PreCommitCheck(self, gone, self.clock.now)

    def promised_over(self, begun: float, kept: Collection[str], staying: Collection[str]) -> None:
        """No transaction that was open before ``begun`` is still open, except those that are ``kept`` and those of
        ``staying`` workers."""
        if not self._always_current:
            return
        for entry in self._of_slots():
            identifier = TransactionalId.parse(entry.id)
            assert identifier is not None
            if identifier.worker in staying:
                continue
            if entry.state is State.ONGOING and entry.started < begun and entry.id not in kept:
                self._checker_of(entry.id).left_open(entry.id, "a pre-commit")

    def promised_open(self, gone: Sequence[str]) -> None:
        """None of ``gone`` was pre-committed."""
        if self._always_current:
            for name in gone:
                self.checker.fail(Invariant.I1, f"{name} is pre-committed, and was not open any more")

    def recovered(self, granted: float) -> None:
        """A generation granted at ``granted`` has recovered: nothing opened before that is still open, except what is
        completed and not settled."""
        if self._always_current:
            for entry in self._of_slots():
                if entry.state is State.ONGOING and entry.started < granted:
                    self._checker_of(entry.id).left_open(entry.id, "a recovery")

    def abandoned(self, since: float) -> None:
        """All owners of transactions opened until ``since`` are long gone: none of these may hold back a reader."""
        still = [entry for entry in self._of_slots() if entry.state is State.ONGOING or entry.state in PREPARED]
        for entry in still:
            if entry.started <= since:
                self.checker.fail(Invariant.ORPHANS, f"{entry.id} is {entry.state.value}")
        if not still:
            for name, what in self.open_transactions().items():
                self.checker.fail(Invariant.ORPHANS, f"{name}: {what}")

    def replayed(self, lost: float) -> None:
        """Slots recorded as lost at ``lost`` are about to be written again: nothing opened before that may still be
        open, except what is completed and not settled."""
        if self._always_current:
            for entry in self._of_slots():
                if entry.state is State.ONGOING and entry.started < lost:
                    self._checker_of(entry.id).overtaken(entry.id)

    def _appended(self, request: Produce, _offset: int, now: float) -> None:
        if request.transactional_id is not None:
            key = (request.transactional_id, request.producer_id, request.producer_epoch)
            entry = self.cluster.entry(request.transactional_id)
            # The timeout starts when the first partition is enlisted, however late the first record comes.
            self._begun.setdefault(key, now if entry is None else entry.started)

    def _marked(self, identifier: str, partition: tuple[str, int], _producer: int, commit: bool, _now: float) -> None:
        topic, number = partition
        if TransactionalId.parse(identifier) is None:
            self._claim_hidden = self.claim_forgotten = False
        if partition not in self._logs:
            return
        self.note("kafka", f"{'commit' if commit else 'abort'} marker of {identifier} in {topic}-{number}")
        span = self.cluster.log(partition).entries[-1].span
        if span is not None and not commit:
            self._aborted.add((identifier, span.producer_id, span.epoch))
        if span is not None and not commit and (ended := (identifier, span.producer_id, span.epoch)) in self._ended:
            self._ended[ended] = False  # confirmed as committed, without the marker, and then aborted
        entries, self._read[partition] = self.cluster.log(partition).read(self._read[partition])
        for entry in entries:
            assert entry.record is not None
            assert entry.record.value is not None
            self.note("reader", f"{topic}-{number} shows {entry.record.value.decode()}")
            self._logs[partition].record(number, entry.record.value)

    # -- requests and time

    def sent(self, process: Process, request: Any) -> None:
        """Check a request when it is sent: it must be right already then."""
        if isinstance(request, EndTxnRequest) and TransactionalId.parse(request.transactional_id) is not None:
            key = (request.transactional_id, request.producer_id, request.producer_epoch)
            for decided in sorted(self._decided_by(key)):
                if not request.committed and decided in self._aborted:
                    continue  # the brokers aborted a part of it; the rest must not hold readers back
                self._checker_of(decided[0]).ends(decided, commit=bool(request.committed))
        elif isinstance(request, InitProducerIdRequest):
            identifier = str(request.transactional_id)
            if self._checker_of(identifier).fences(identifier) and (entry := self.cluster.entry(identifier)):
                self._overrun[identifier, entry.producer_id, entry.epoch] = "a driver of the replaced store"

    def arrived(self, who: Process, call: Call, sent: float) -> Any:
        """Let the brokers handle a request that was sent at ``sent``."""
        cluster, request = self.cluster, call.request
        if isinstance(request, InitProducerIdRequest):
            entry = cluster.entry(str(request.transactional_id))
            if entry is not None and entry.state is State.ONGOING:
                key = (entry.id, entry.producer_id, entry.epoch)
                if sent < self._begun.get(key, 0.0):
                    # The producer began with this request, repeated it for lack of an answer, and wrote.
                    self._overrun[key] = "late request"
        if isinstance(request, DescribeProducersRequest):
            for topic in request.topics:
                self._looked.update({(str(topic.name), number): self.clock.now for number in topic.partition_indexes})
        self.requests += 1
        node = None
        if call.node is None:
            node = self.clock.random.choice(cluster.alive or cluster.settings.brokers)
        decided: set[Transaction] = set()
        if isinstance(request, EndTxnRequest):
            decided = self._decided_by((request.transactional_id, request.producer_id, request.producer_epoch))
        answer = call.apply(self.clock.now, node)
        if isinstance(request, EndTxnRequest) and not isinstance(answer, NoAnswer) and answer.error_code == 0:
            key = (request.transactional_id, request.producer_id, request.producer_epoch)
            self._ended.update(dict.fromkeys((key, *decided), bool(request.committed)))
            if request.committed and key in self._checker_of(key[0]).torn:
                self.checker.fail(Invariant.I1, f"{key[0]} is committed although a part of it is gone")
            if (claim := self._claiming.pop(key, None)) is not None:
                self.claims += 1
                self.checker.claim(*claim)
        elif isinstance(request, TxnOffsetCommitRequest) and not isinstance(answer, NoAnswer):
            partition = answer.topics[0].partitions[0]
            if partition.error_code == 0:
                key = (request.transactional_id, request.producer_id, request.producer_epoch)
                written = request.topics[0].partitions[0]
                metadata = json.loads(str(written.committed_metadata))
                outdated = metadata["generation"] < self.checker.generations
                if not (self.checker.claimed == MAX_ID and outdated):  # a deposed driver restores no protection
                    self._claiming[key] = written.committed_offset, str(metadata["holder"])
        if self.log_requests:
            self.note("kafka", f"{who.name} asks {said(request)}: {answered(answer)}")
        self._arm()
        return answer

    log_requests = False

    def _arm(self) -> None:
        """Schedule what the brokers do next without a request."""
        due = self.cluster.next_event
        if due < self._alarm:
            self._alarm = due
            self.clock.call(self.wires, due - self.clock.now, self._due)

    def _due(self) -> None:
        if self.clock.now >= self._alarm:
            self._alarm = float("inf")
            self.cluster.advance(self.clock.now)
            self._arm()

    # -- faults

    def heal(self) -> None:
        self.link.heal()
        self._skipped = 0.0

    def move(self) -> None:
        """Move a coordinator to another broker; the former one may not notice for a while."""
        random = self.clock.random
        kind = random.choice((CoordinatorKind.TRANSACTION, CoordinatorKind.GROUP))
        if not self.cluster.alive:
            return
        node = random.choice(self.cluster.alive)
        stale = random.choice((0.0, 0.0, 1.5))
        self.note("kafka", f"a coordinator of {kind.name.lower()}s moves to broker {node}, stale for {stale} s")
        self.cluster.move_coordinator(
            kind,
            str(random.random()),
            node,
            self.clock.now,
            loading_s=random.choice((0.0, 0.5)),
            stale_s=stale,
            believers=self.cluster.settings.brokers if random.random() < 0.5 else (),
        )

    def fail(self, seconds: float) -> None:
        """Stop a broker for a while."""
        running = self.cluster.alive
        if len(running) > 1:
            node = self.clock.random.choice(running)
            self.note("kafka", f"broker {node} stops")
            self.cluster.fail(node, self.clock.now, election_s=0.3)
            self._arm()
            self.clock.call(self.wires, seconds, lambda: self._restart(node))

    def _restart(self, node: int) -> None:
        self.note("kafka", f"broker {node} runs")
        self.cluster.restart(node, self.clock.now)
        self._arm()

    def hijack(self, ids: Collection[str] | None = None) -> None:
        """Let another program take over one of our ids, one of ``ids`` where given."""
        entries = [entry for entry in self.cluster.entries() if ids is None or entry.id in ids]
        if not entries:
            return
        entry = self.clock.random.choice(entries)
        self.note("kafka", f"another program takes over {entry.id}")
        if entry.state is State.ONGOING:
            for key in ((entry.id, entry.producer_id, entry.epoch), *self._open_parts(entry)):
                self._overrun[key] = "another program"
        elif TransactionalId.parse(entry.id) is None and entry.state not in PREPARED:
            self.claim_forgotten |= self._claim_hidden
        request = InitProducerIdRequest(
            transactional_id=entry.id, transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1, max_version=4
        )
        for node in self.cluster.alive:
            self.cluster.handle(node, request, self.clock.now)
        self._arm()

    def tear(self, ids: Collection[str]) -> None:
        """Let an operator abort the open transaction of one of ``ids`` in one partition, with the brokers' own tool.

        Skips partitions described since the transaction began: the driver may commit at any moment, too soon to notice.
        """
        random = self.clock.random
        entries = [entry for entry in self.cluster.entries() if entry.id in ids and entry.state is State.ONGOING]
        parts = [
            (entry, partition)
            for entry in sorted(entries, key=lambda entry: entry.id)
            for partition in sorted(entry.partitions)
            if partition in self._logs and self._looked.get(partition, -1.0) < entry.started
        ]
        if not parts:
            return
        entry, partition = random.choice(parts)
        log = self.cluster.log(partition)
        if not log.in_transaction(entry.producer_id, entry.epoch):
            return
        self.note("kafka", f"a tool aborts {entry.id} in {partition[0]}-{partition[1]} alone")
        self._overrun[entry.id, entry.producer_id, entry.epoch] = "the brokers' tool"
        self._checker_of(entry.id).torn.add((entry.id, entry.producer_id, entry.epoch))
        log.mark(entry.producer_id, entry.epoch, commit=False, now=self.clock.now)
        self._marked(entry.id, partition, entry.producer_id, False, self.clock.now)

    def clean_up(self) -> None:
        """Let a tool delete the consumer group of a receipt."""
        entries = self.cluster.entries()
        if not entries:
            return
        name = self.clock.random.choice(entries).id
        self.note("kafka", f"the consumer group {name} is deleted")
        if TransactionalId.parse(name) is None:
            self.checker.claimed = MAX_ID  # without the claim there is no protection until it is written again
            self._claiming = {
                key: claim for key, claim in self._claiming.items() if key[0] != name
            }  # nor by one staged
        for node in self.cluster.alive:
            self.cluster.handle(node, DeleteGroupsRequest(groups_names=[name]), self.clock.now)
        self._arm()


@dataclass(frozen=True)
class PreCommitCheck:
    """What a pre-commit promises. Where a coordinator may be out of date, it cannot be promised, and is not checked."""

    brokers: Brokers
    gone: Sequence[str]
    """Voted for, and not open any more when it began."""
    begun: float

    def voted(self) -> None:
        """Check after it that the transaction of every vote was open."""
        self.brokers.promised_open(self.gone)

    def swept(self, kept: Collection[str], staying: Collection[str]) -> None:
        """Check, once leftovers are ended, that they are."""
        self.brokers.promised_over(self.begun, kept, staying)
