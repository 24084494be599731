"""Bugs of the Kafka sink: ids, transactions, receipts, proofs."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from unittest.mock import ANY as ANYTHING

from onceward.common.errors import ClaimChangedError, FencedError
from onceward.connections.topics import TopicFacts
from onceward.driver.outputs import Outputs
from onceward.protocol import generations
from onceward.protocol.committing import PreCommitted, System
from onceward.protocol.values import Claim, Committable, JobName
from onceward.sinks.kafka import identifiers
from onceward.sinks.kafka.client import ArrowProducer
from onceward.sinks.kafka.control import fencing, markers, outcomes, receipts
from onceward.sinks.kafka.control.brokers import topic_facts
from onceward.sinks.kafka.control.claims import ClaimHolder
from onceward.sinks.kafka.control.committables import KafkaCommittable
from onceward.sinks.kafka.control.control_plane import ControlPlane, Located, Operation
from onceward.sinks.kafka.control.finishing import Finishing
from onceward.sinks.kafka.control.hanging import Hanging, finish
from onceward.sinks.kafka.control.known import KnownOutcomes
from onceward.sinks.kafka.control.logs import Batch, Log
from onceward.sinks.kafka.control.markers import LogEnding
from onceward.sinks.kafka.control.outcomes import EndAnswer, Judgement, Look, Proof
from onceward.sinks.kafka.control.parts import Parts, open_parts, reading_parts
from onceward.sinks.kafka.control.receipts import ReceiptState
from onceward.sinks.kafka.control.settling import Settling
from onceward.sinks.kafka.control.system import KafkaSystem
from onceward.sinks.kafka.control.transactions import Code, Transaction, Transactions, TransactionView
from onceward.sinks.kafka.driver import precommit
from onceward.sinks.kafka.executor.delivery import Delivery
from onceward.sinks.kafka.executor.producers import PoolKey, ProducerPool
from onceward.sinks.kafka.executor.seats import NOTHING, Seat
from onceward.sinks.kafka.identifiers import TransactionalId
from tests.mutants import rivals
from tests.mutants.breaking import Field, always, both, within, wrapped
from tests.mutants.driver import ANY
from tests.mutants.mutant import Mutant
from tests.mutants.outcome_cases import Neighbours, OutcomeCases
from tests.mutants.rivals import Fork, Rivals
from tests.mutants.seed_hunts import SeedHunt, clear
from tests.simulation.checker import Invariant
from tests.simulation.executors import TaskFaults
from tests.simulation.network import LinkFaults

__all__ = ["KAFKA", "SETTLES_UNSEEN"]

TASKS = SeedHunt(
    name="tasks fail",
    seeds=20,
    faults=clear(tasks=TaskFaults(fails=0.1, killed=0.1, declared_lost=0.2, slow=0.1)),
)
BROKERS = SeedHunt(
    name="brokers fail, requests get lost",
    seeds=30,
    faults=clear(kafka=LinkFaults(loss=0.03), broker_failures=3),
)
DEAF = SeedHunt(
    name="everything is slow",
    seeds=20,
    faults=clear(kafka=LinkFaults(loss=0.1), rpc=LinkFaults(slow=0.2), marker_delay=0.5),
)
_SLOW = {"kafka": LinkFaults(loss=0.1), "rpc": LinkFaults(slow=0.2), "marker_delay": 0.5, "interval": 0.0}
IDLE = SeedHunt(
    name="everything is slow, and workers end after their tasks",
    seeds=40,
    faults=clear(**_SLOW, tasks=TaskFaults(idle=0.8)),
)
DYING = SeedHunt(
    name="everything is slow, and workers die during their tasks",
    seeds=40,
    faults=clear(**_SLOW, tasks=TaskFaults(idle=0.3, killed=0.3)),
)
FOREIGN = SeedHunt(name="another program takes over ids", seeds=40, faults=clear(hijacks=30))
WORN = SeedHunt(
    name="ids begin close to the last epoch of their producer",
    seeds=100,
    faults=clear(worn=1.0, moves=6, broker_failures=3, interval=0.0, limit=1),
)
TOOLS = SeedHunt(name="a tool aborts single partitions", seeds=20, faults=clear(torn=0.3))
SKIPPED = SeedHunt(name="the brokers skip markers", seeds=20, faults=clear(skipped_markers=0.3, wishes=0, cancels=0))
LEFT = SeedHunt(
    name="the brokers skip markers, and no driver comes back",
    seeds=20,
    faults=clear(skipped_markers=0.7, gone=True, staying=True, wishes=0, cancels=0),
)
NEIGHBOURS = Neighbours(name="sweep among neighbours")
SUCCESSOR = Neighbours(name="sweep after a takeover", replaced=True)
FATES = OutcomeCases(most=1500)
NEW_STORES = Rivals(name="two new stores", copy=False)
COPIES = Rivals(name="a copy of the store beside it", copy=True)
TWINS = Rivals(name="two copies of one store", copy=True, together=True, every=4, chances=200)
FORK = Fork()

# -- parts


def _unknown_has_ended(
    judge: Callable[[Transaction, Look, Sequence[str]], Judgement | None],
    transaction: Transaction,
    look: Look,
    gone: Sequence[str],
) -> Judgement | None:
    judged = judge(transaction, look, gone)
    return None if judged is not None and judged.proof is Proof.NOTHING else judged


# -- claims


def _repeats_the_last_step(
    initialise: Callable[[ClaimHolder, tuple[int, int]], Code], self: ClaimHolder, expected: tuple[int, int]
) -> Code:
    producer = self._producer
    code = initialise(self, expected)
    if code == -1:
        self._producer = producer
    return code


def _only_before_the_fence(
    refuse: Callable[[ClaimHolder, Claim, Collection[Claim], Claim | None], None],
    self: ClaimHolder,
    claim: Claim,
    seen: Collection[Claim],
    found: Claim | None,
) -> None:
    if self._producer is None:
        refuse(self, claim, seen, found)


def _overwrites_once_fenced(
    attempt: Callable[[ClaimHolder, Claim, Collection[Claim], bool], Code],
    self: ClaimHolder,
    claim: Claim,
    seen: Collection[Claim],
    look: bool,
) -> Code:
    try:
        return attempt(self, claim, seen, look)
    except ClaimChangedError:
        if self._producer is None or self._used:
            raise
        return self._write(claim)


def _renews_anyway(
    renew: Callable[[ClaimHolder, Claim, Callable[[], bool]], bool],
    self: ClaimHolder,
    claim: Claim,
    give_up: Callable[[], bool] = lambda: False,
) -> bool:
    try:
        return renew(self, claim, give_up)
    except FencedError:
        return True


CLAIMS = (
    Mutant(
        name="a driver does not read the claim again after it has fenced the other writers",
        hurts="a driver that was paused overwrites the claim of another store, and writes records twice",
        breaks=wrapped(ClaimHolder._refuse_other, _only_before_the_fence),
        hunt=NEW_STORES,
        caught_by=(Invariant.I2,),
    ),
    Mutant(
        name="a driver repeats the step to the last epoch of its claim's producer",
        hurts="brokers refuse it each time, and the job never commits again",
        breaks=wrapped(ClaimHolder._initialise, _repeats_the_last_step),
        hunt=WORN,
        caught_by=(Invariant.I8,),
    ),
    Mutant(
        name="the coordinator ignores which driver holds the claim",
        hurts="a copy of the store with the claimed generation and checkpoint passes, and writes records twice",
        breaks=wrapped(
            generations.claim_refusal, lambda refusal, durable, claim: refusal(durable, replace(claim, holder=""))
        ),
        hunt=FORK,
        caught_by=(Invariant.I2,),
    ),
    Mutant(
        name="a driver overwrites a foreign claim after it has fenced the other writers",
        hurts="two drivers that open the job at the same time both continue",
        breaks=wrapped(ClaimHolder._attempt, _overwrites_once_fenced),
        hunt=TWINS,
        caught_by=(Invariant.I2,),
    ),
    Mutant(
        name="a driver commits a checkpoint although the renewal of its claim was refused",
        hurts="a replaced driver commits records that its successor has read again",
        breaks=wrapped(ClaimHolder.renew, _renews_anyway),
        hunt=COPIES,
        caught_by=(Invariant.I2,),
    ),
    Mutant(
        name="a claim does not name its holder",
        hurts="two copies of one store grant the same generation, and both write",
        breaks=wrapped(rivals.claimed, lambda claimed, durable, token: claimed(durable, "")),
        hunt=FORK,
        caught_by=(Invariant.I2,),
    ),
)

# -- transactional ids


def _after_any_commit(
    may_use: Callable[[ProducerPool, int, Mapping[str, int]], bool],
    self: ProducerPool,
    number: int,
    committed: Mapping[str, int],
) -> bool:
    known = number in self._seat.last and self._id(number).suffix in committed
    return known or may_use(self, number, committed)


def _with_free_ids(init: Callable[[ProducerPool, PoolKey], None], self: ProducerPool, key: PoolKey) -> None:
    init(self, key)
    self._seat.last = dict.fromkeys(self._seat.last, NOTHING)


def _leaves_on_seat(self: Seat, number: int) -> int:
    return self.last.get(number, NOTHING)


IDS = (
    Mutant(
        name="a worker reuses an id before its transaction is known to be settled",
        hurts="initialising the producer aborts a decided transaction",
        breaks=wrapped(ProducerPool._may_use, lambda may_use, self, number, committed: number in self._seat.last),
        hunt=ANY,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="a worker reuses an id because an older transaction under it is settled",
        hurts="the next use of the id aborts the newer one, which may be decided",
        breaks=wrapped(ProducerPool._may_use, _after_any_commit),
        hunt=DEAF,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="a worker takes over the ids of an ended worker without knowing that they are settled",
        hurts="initialising the producer aborts a decided transaction",
        breaks=wrapped(ProducerPool.__init__, _with_free_ids),
        hunt=IDLE,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="an id stays free on its seat while it is used",
        hurts="its worker dies, and the next one aborts its transaction, which may be decided",
        breaks=both(
            within(ProducerPool._next, Seat.strike, _leaves_on_seat),
            within(ProducerPool.take, Seat.strike, _leaves_on_seat),
        ),
        hunt=DYING,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="a sweep includes the ids of other jobs",
        hurts="it aborts their transactions",
        breaks=both(
            within(
                Transactions.listing_open_ids,
                Field(TransactionalId, lambda identifier: identifier.job),
                always(ANYTHING),
            ),
            wrapped(identifiers.job_pattern, lambda job_pattern, job: re.escape(job) + ".*"),
        ),
        hunt=NEIGHBOURS,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="a replaced driver sweeps its successor's transactions",
        hurts="it aborts what the successor has acknowledged",
        breaks=within(KafkaSystem.sweep, fencing.refuse_newer, always(None)),
        hunt=SUCCESSOR,
        caught_by=(Invariant.I1,),
    ),
)

# -- transactions


def _keeps_only_its_own(
    self: System,
    job: JobName,
    *,
    keep: Collection[Committable] = (),
    staying: Collection[str] = (),
    known: Sequence[PreCommitted] = (),
) -> Sequence[str]:
    return self.sweep(job, keep=known[0].committables, staying=staying, known=known)


TRANSACTIONS = (
    Mutant(
        name="a pre-commit fences transactions that are decided and not settled",
        hurts="a completed checkpoint loses records",
        breaks=within(Outputs.pre_commit, System.sweep, _keeps_only_its_own),
        hunt=ANY,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="a pre-commit leaves the transactions of failed attempts open",
        hurts="readers wait until the brokers time them out",
        breaks=within(KafkaSystem.sweep, fencing.fence_ids, always(None)),
        hunt=TASKS,
        caught_by=(Invariant.I9,),
    ),
    Mutant(
        name="the sink accepts a vote without asking the brokers",
        hurts="the driver acknowledges a transaction that is gone, and its records are lost",
        breaks=wrapped(precommit._require_ours, always(None)),
        hunt=FOREIGN,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="a task votes before its records are flushed",
        hurts="records that the brokers never received count as written",
        breaks=within(Delivery.flush, ArrowProducer.flush, always(0)),
        hunt=BROKERS,
        caught_by=(Invariant.I1, Invariant.I4),
    ),
    Mutant(
        name="the sink ends transactions with the epoch after theirs",
        hurts="no commit and no abort succeeds",
        breaks=within(
            precommit.make_committables, Field(TransactionView, lambda view: view.epoch), lambda view: view.epoch + 1
        ),
        hunt=ANY,
        caught_by=(Invariant.I1, Invariant.I5, Invariant.I8, Invariant.I13),
    ),
)

# -- proofs

_Prove = Callable[[Transaction, Look], Proof]


def _refused_is_done(classify: Callable[[Code], EndAnswer], code: Code) -> EndAnswer:
    answer = classify(code)
    return EndAnswer.DONE if answer is EndAnswer.DOUBT else answer


def _lost_without_receipt(prove: _Prove, transaction: Transaction, look: Look) -> Proof:
    nothing = outcomes._shown(transaction, look) is Proof.NOTHING
    return Proof.LOST if nothing and look.receipt.state is ReceiptState.ABSENT else prove(transaction, look)


def _lost_while_hidden(prove: _Prove, transaction: Transaction, look: Look) -> Proof:
    hidden = outcomes._shown(transaction, look) is Proof.UNSTABLE
    return Proof.LOST if hidden else prove(transaction, look)


def _also_at_epoch_before(self: Log, offset: int, end: int) -> Iterator[Batch]:
    for batch in self.read(offset, end):
        yield from (batch, replace(batch, epoch=batch.epoch - 1))


def _aborts_unanswered(
    self: Transactions,
    transactions: Sequence[Transaction],
    *,
    commit: bool,
    located: Mapping[str, Located] | None = None,
    highest: Code | None = None,
) -> dict[str, Code]:
    codes = self.end(transactions, commit=commit, located=located, highest=highest)
    unanswered = [one for one in transactions if outcomes.classify(codes[one.id]) is EndAnswer.AGAIN]
    if unanswered:
        self.end(unanswered, commit=False)
    return codes


def _fences_unconfirmed(self: Transactions, ids: Collection[str]) -> dict[str, Code]:
    self.fence(ids)
    return {}


PROOFS = (
    Mutant(
        name="the sink aborts a transaction whose commit gets no answer",
        hurts="the checkpoint is completed, and the records of the slot are lost",
        breaks=within(Settling._end, Transactions.end, _aborts_unanswered),
        hunt=BROKERS,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="a refused commit counts as done",
        hurts="the refusal may mean that the transaction was aborted",
        breaks=wrapped(outcomes.classify, _refused_is_done),
        hunt=FOREIGN,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="a missing receipt proves a loss",
        hurts="a committed transaction whose receipt was deleted or has expired counts as lost",
        breaks=wrapped(outcomes._proof, _lost_without_receipt),
        hunt=FATES,
        caught_by=(Invariant.I13,),
    ),
    Mutant(
        name="a receipt that another open transaction hides proves a loss",
        hurts="a committed transaction counts as lost",
        breaks=wrapped(outcomes._proof, _lost_while_hidden),
        hunt=FATES,
        caught_by=(Invariant.I13,),
    ),
    Mutant(
        name="a commit at the next epoch counts as ours where ending does not raise epochs",
        hurts="another program's commit counts as ours, which was aborted",
        breaks=within(
            outcomes._shown_by_coordinator, Field(Transaction, lambda transaction: transaction.version), always(5)
        ),
        hunt=FATES,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="a commit marker after records of the next epoch counts as ours",
        hurts="another program's commit counts as ours, which was aborted",
        breaks=within(markers._search, Log.read, _also_at_epoch_before),
        hunt=FATES,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="a receipt proves a commit whatever its token",
        hurts="the receipt of another transaction under the id proves ours",
        breaks=wrapped(receipts._receipt, lambda receipt, offset, token: receipt(offset, offset.metadata)),
        hunt=FATES,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="an unconfirmed abort counts as done",
        hurts="the transaction stays open, and readers wait",
        breaks=within(fencing.fence_ids, Transactions.fence, _fences_unconfirmed),
        hunt=NEIGHBOURS,
        caught_by=(Invariant.I9,),
    ),
)

# -- parts


def _one_marker_proves(prove: _Prove, transaction: Transaction, look: Look) -> Proof:
    proof = prove(transaction, look)
    shown = look.log is not None and look.log.ending is LogEnding.COMMITTED
    return Proof.COMMITTED if shown and proof is Proof.PARTLY else proof


PARTS = (
    Mutant(
        name="the sink commits a transaction although a partition has lost its part",
        hurts="its records in that partition never become visible, and the checkpoint counts as settled",
        breaks=wrapped(Settling._torn, lambda torn, self, asked: set()),
        hunt=TOOLS,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="the sink commits a transaction that lost a part because an outdated coordinator does not show it",
        hurts="the coordinator in office commits the rest: a part of the slot is visible and cannot be replayed",
        breaks=wrapped(outcomes.judge_torn, _unknown_has_ended),
        hunt=FATES,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="an answered commit is enough even if a partition had lost its part",
        hurts="the checkpoint counts as settled, and the records of that part are missing",
        breaks=within(Settling._end, Parts.whole, always(True)),
        hunt=FATES,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="the COMMIT marker of one partition counts for all partitions",
        hurts="records that another partition shows as aborted count as committed",
        breaks=wrapped(outcomes._proof, _one_marker_proves),
        hunt=FATES,
        caught_by=(Invariant.I1,),
    ),
)

# -- skipped markers


def _nothing_is_open(
    _control: ControlPlane, handles: Collection[KafkaCommittable], _topics: object = None
) -> Operation[dict[int, Parts]]:
    yield []
    return {handle.slot: Parts() for handle in handles}


def _aborts_what_hangs(control: ControlPlane, one: Hanging, view: TransactionView, *, commit: bool) -> Code:
    return finish(control, one, view, commit=False)


def _of_known_topics(control: ControlPlane, names: Collection[str] | None) -> Mapping[str, TopicFacts]:
    return topic_facts(control, names or ())


SETTLES_UNSEEN = within(KnownOutcomes.look, reading_parts, _nothing_is_open)
"""Nothing looks for the markers of a commit."""

SKIPS = (
    Mutant(
        name="a commit that the brokers confirmed counts as settled although markers are missing",
        hurts="readers never see its records, nor anything behind them",
        breaks=SETTLES_UNSEEN,
        hunt=SKIPPED,
        caught_by=(Invariant.I1, Invariant.I13),
    ),
    Mutant(
        name="missing markers are waited for and never written",
        hurts="no checkpoint is settled any more, and readers wait for ever",
        breaks=wrapped(Finishing.look, always(None)),
        hunt=SKIPPED,
        caught_by=(Invariant.I8,),
    ),
    Mutant(
        name="missing markers are written as an abort whatever was decided",
        hurts="records of a completed checkpoint are thrown away, or the claim of the driver that runs",
        breaks=within(Finishing.look, finish, _aborts_what_hangs),
        hunt=SKIPPED,
        caught_by=(Invariant.I1, Invariant.I7),
    ),
    Mutant(
        name="a coordinator that does not know the topics looks into none",
        hurts="readers wait for ever for a driver that is gone",
        breaks=within(open_parts, topic_facts, _of_known_topics),
        hunt=LEFT,
        caught_by=(Invariant.ORPHANS,),
    ),
)

KAFKA = (*IDS, *TRANSACTIONS, *PROOFS, *PARTS, *SKIPS, *CLAIMS)
