"""Bugs of the Kafka sink: ids, transactions, receipts, proofs."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from unittest.mock import ANY as ANYTHING

from onceward.coordinator.errors import ClaimChangedError, FencedError
from onceward.coordinator.pipeline.tasks import Vote
from onceward.coordinator.protocol import generations
from onceward.coordinator.protocol.values import CheckpointId, Claim, Committable, JsonObject
from onceward.sinks.kafka import identifiers
from onceward.sinks.kafka.client import ArrowProducer
from onceward.sinks.kafka.control import fencing, markers, outcomes, receipts
from onceward.sinks.kafka.control.claims import ClaimHolder
from onceward.sinks.kafka.control.committer import KafkaCommitter
from onceward.sinks.kafka.control.control_plane import NoAnswer
from onceward.sinks.kafka.control.logs import Batch, Log
from onceward.sinks.kafka.control.markers import Ending
from onceward.sinks.kafka.control.outcomes import EndAnswer, Look, Proof
from onceward.sinks.kafka.control.parts import Parts
from onceward.sinks.kafka.control.receipts import ReceiptState
from onceward.sinks.kafka.control.settling import Settling
from onceward.sinks.kafka.control.transactions import CODE_NONE, Code, Transaction, Transactions, TransactionView
from onceward.sinks.kafka.driver import precommit
from onceward.sinks.kafka.driver.sink import KafkaSink
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

__all__ = ["KAFKA"]

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
    name="everything is slow, and workers die in the midst of their tasks",
    seeds=40,
    faults=clear(**_SLOW, tasks=TaskFaults(idle=0.3, killed=0.3)),
)
FOREIGN = SeedHunt(name="another program takes over ids", seeds=30, faults=clear(hijacks=8))
TOOLS = SeedHunt(name="somebody aborts single partitions", seeds=20, faults=clear(torn=0.3))
NEIGHBOURS = Neighbours(name="sweep among neighbours")
SUCCESSOR = Neighbours(name="sweep after a takeover", replaced=True)
FATES = OutcomeCases(most=600)
NEW_STORES = Rivals(name="two new stores", copy=False)
COPIES = Rivals(name="a copy of the store beside it", copy=True)
TWINS = Rivals(name="two copies of one store", copy=True, together=True, every=4, chances=200)
FORK = Fork()

# -- claims


def _fences_after_reading(self: ClaimHolder, claim: Claim) -> Code:
    code = self._fence()
    return self._write(claim) if code == CODE_NONE else code


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
        name="the claim is not read again once others are refused",
        hurts="a driver that was paused overwrites the claim of another store, and writes everything once more",
        breaks=within(ClaimHolder._attempt, ClaimHolder._write, _fences_after_reading),
        hunt=NEW_STORES,
        caught_by=(Invariant.I2,),
    ),
    Mutant(
        name="a store does not know to which drivers it granted its generations",
        hurts="a copy of it that knows as many generations and checkpoints as are claimed is let in, and writes twice",
        breaks=wrapped(
            generations.claim_refusal, lambda refusal, durable, claim: refusal(durable, replace(claim, holder=""))
        ),
        hunt=FORK,
        caught_by=(Invariant.I2,),
    ),
    Mutant(
        name="another claim is not noticed once others are refused",
        hurts="two drivers that open the job at once both go on",
        breaks=wrapped(ClaimHolder._attempt, _overwrites_once_fenced),
        hunt=TWINS,
        caught_by=(Invariant.I2,),
    ),
    Mutant(
        name="a checkpoint is committed although its claim was refused",
        hurts="a driver that was replaced commits what its successor has read again",
        breaks=wrapped(ClaimHolder.renew, _renews_anyway),
        hunt=COPIES,
        caught_by=(Invariant.I2,),
    ),
    Mutant(
        name="a claim does not say who holds it",
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
        name="a worker takes an id again before its transaction is known to be settled",
        hurts="initialising the producer aborts a decided transaction",
        breaks=wrapped(ProducerPool._may_use, lambda may_use, self, number, committed: number in self._seat.last),
        hunt=ANY,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="an id counts as free because an older transaction under it is settled",
        hurts="the newer one is decided, perhaps, and aborted by the next use of its id",
        breaks=wrapped(ProducerPool._may_use, _after_any_commit),
        hunt=DEAF,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="a worker takes over the ids of one that has ended without knowing that they are settled",
        hurts="initialising the producer aborts a decided transaction",
        breaks=wrapped(ProducerPool.__init__, _with_free_ids),
        hunt=IDLE,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="an id stays on its seat while it is used",
        hurts="its worker dies, and the next one takes it for free while its transaction is decided and unsettled",
        breaks=both(
            within(ProducerPool._next, Seat.strike, _leaves_on_seat),
            within(ProducerPool.take, Seat.strike, _leaves_on_seat),
        ),
        hunt=DYING,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="the sweep does not look at whose ids they are",
        hurts="transactions of other jobs are aborted",
        breaks=both(
            within(Transactions.open_ids, Field(TransactionalId, lambda identifier: identifier.job), always(ANYTHING)),
            wrapped(identifiers.job_pattern, lambda job_pattern, job: re.escape(job) + ".*"),
        ),
        hunt=NEIGHBOURS,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="a driver that was replaced sweeps its successor's transactions",
        hurts="what the successor has acknowledged is aborted",
        breaks=within(KafkaCommitter.sweep, fencing.refuse_newer, always(None)),
        hunt=SUCCESSOR,
        caught_by=(Invariant.I1,),
    ),
)

# -- transactions


def _keeps_only_its_own(
    pre_commit: Callable[..., tuple[Committable, ...]],
    self: KafkaSink,
    checkpoint: CheckpointId,
    votes: Sequence[Vote],
    inputs: Sequence[Sequence[JsonObject]],
    *,
    unsettled: Collection[Committable],
) -> tuple[Committable, ...]:
    return pre_commit(self, checkpoint, votes, inputs, unsettled=())


TRANSACTIONS = (
    Mutant(
        name="a pre-commit fences transactions that are decided and not settled",
        hurts="a completed checkpoint loses records",
        breaks=wrapped(KafkaSink.pre_commit, _keeps_only_its_own),
        hunt=ANY,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="a pre-commit leaves the transactions of lost attempts open",
        hurts="readers wait for them until the brokers give up",
        breaks=within(precommit.abort_losers, fencing.fence_ids, always(None)),
        hunt=TASKS,
        caught_by=(Invariant.I9,),
    ),
    Mutant(
        name="a vote is believed without asking the brokers",
        hurts="a transaction that is gone is acknowledged, and its records are lost",
        breaks=wrapped(precommit._require_ours, always(None)),
        hunt=FOREIGN,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="a task votes before its records are flushed",
        hurts="records that the brokers never took count as written",
        breaks=within(Delivery.flush, ArrowProducer.flush, always(0)),
        hunt=BROKERS,
        caught_by=(Invariant.I1, Invariant.I4),
    ),
    Mutant(
        name="transactions are ended with the epoch after theirs",
        hurts="no decision can be carried out",
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


def _fences_unconfirmed(self: Transactions, ids: Collection[str]) -> dict[str, Code]:
    self.fence(ids)
    return {}


PROOFS = (
    Mutant(
        name="no answer to a commit is taken for an answer",
        hurts="the checkpoint counts as settled, and its transaction is still open",
        breaks=wrapped(
            outcomes.classify, lambda classify, code: EndAnswer.DONE if isinstance(code, NoAnswer) else classify(code)
        ),
        hunt=BROKERS,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="a refused commit is taken for a commit",
        hurts="the refusal may mean that the transaction was aborted",
        breaks=wrapped(outcomes.classify, _refused_is_done),
        hunt=FOREIGN,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="a receipt that is missing proves a loss",
        hurts="a committed transaction whose receipt was deleted or expired is called lost",
        breaks=wrapped(outcomes._proof, _lost_without_receipt),
        hunt=FATES,
        caught_by=(Invariant.I13,),
    ),
    Mutant(
        name="a receipt that somebody's open transaction hides counts as absent",
        hurts="a committed transaction is called lost",
        breaks=wrapped(outcomes._proof, _lost_while_hidden),
        hunt=FATES,
        caught_by=(Invariant.I13,),
    ),
    Mutant(
        name="a commit at the next epoch counts as ours where ending does not raise epochs",
        hurts="another program's commit is taken for ours, which was aborted",
        breaks=within(
            outcomes._shown_by_coordinator, Field(Transaction, lambda transaction: transaction.version), always(5)
        ),
        hunt=FATES,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="a commit at the producer's next epoch in the log counts as ours",
        hurts="another program's commit is taken for ours, which was aborted",
        breaks=within(markers._search, Log.read, _also_at_epoch_before),
        hunt=FATES,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="any receipt proves, whatever its token",
        hurts="another transaction's receipt under the id makes ours count as committed",
        breaks=wrapped(receipts._receipt, lambda receipt, offset, token: receipt(offset, offset.metadata)),
        hunt=FATES,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="an abort that was not confirmed counts as done",
        hurts="the transaction stays open, and readers wait",
        breaks=within(fencing.fence_ids, Transactions.fence, _fences_unconfirmed),
        hunt=NEIGHBOURS,
        caught_by=(Invariant.I9,),
    ),
)

# -- parts


def _one_marker_proves(prove: _Prove, transaction: Transaction, look: Look) -> Proof:
    proof = prove(transaction, look)
    shown = look.log is not None and look.log.ending is Ending.COMMITTED
    return Proof.COMMITTED if shown and proof is Proof.PARTLY else proof


PARTS = (
    Mutant(
        name="a transaction of which a partition has lost its part is committed all the same",
        hurts="its records in that partition never become visible, and the checkpoint counts as settled",
        breaks=wrapped(Settling._torn, lambda torn, self, control, handles, parts: set()),
        hunt=TOOLS,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="an answered commit is enough, whatever the partitions held",
        hurts="a commit that somebody else made hides that a part had been aborted before",
        breaks=within(Settling._ask, Parts.whole, always(True)),
        hunt=FATES,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="the COMMIT marker of one partition stands for all of them",
        hurts="what another partition shows as aborted counts as committed",
        breaks=wrapped(outcomes._proof, _one_marker_proves),
        hunt=FATES,
        caught_by=(Invariant.I1,),
    ),
)

KAFKA = (*IDS, *TRANSACTIONS, *PROOFS, *PARTS, *CLAIMS)
