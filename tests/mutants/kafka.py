"""Bugs of the Kafka sink: ids, transactions, receipts, proofs."""

from onceward.coordinator.protocol import generations
from onceward.sinks.kafka import identifiers
from onceward.sinks.kafka.control import claims, committer, fencing, markers, outcomes, receipts, settling, transactions
from onceward.sinks.kafka.driver import precommit, sink
from onceward.sinks.kafka.executor import delivery, producers
from tests.mutants import rivals
from tests.mutants.breaking import both, changed
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

CLAIMS = (
    Mutant(
        name="the claim is not read again once others are refused",
        hurts="a driver that was paused overwrites the claim of another store, and writes everything once more",
        breaks=changed(
            claims.ClaimHolder._attempt,
            ("offset = _offset(", "if fenced:\n            break\n        offset = _offset("),
        ),
        hunt=NEW_STORES,
        caught_by=(Invariant.I2,),
    ),
    Mutant(
        name="a store does not know to which drivers it granted its generations",
        hurts="a copy of it that knows as many generations and checkpoints as are claimed is let in, and writes twice",
        breaks=changed(generations.claim_refusal, ("if claim.holder and", "if not claim.holder and")),
        hunt=FORK,
        caught_by=(Invariant.I2,),
    ),
    Mutant(
        name="another claim is not noticed once others are refused",
        hurts="two drivers that open the job at once both go on",
        breaks=changed(claims.ClaimHolder._attempt, ("found not in seen", "not fenced and found not in seen")),
        hunt=TWINS,
        caught_by=(Invariant.I2,),
    ),
    Mutant(
        name="a checkpoint is committed although its claim was refused",
        hurts="a driver that was replaced commits what its successor has read again",
        breaks=changed(claims.ClaimHolder.renew, ("raise FencedError(str(error)) from error", "return True")),
        hunt=COPIES,
        caught_by=(Invariant.I2,),
    ),
    Mutant(
        name="a claim does not say who holds it",
        hurts="two copies of one store grant the same generation, and both write",
        breaks=changed(rivals.claimed, ("holder=token", 'holder=""')),
        hunt=FORK,
        caught_by=(Invariant.I2,),
    ),
)

IDS = (
    Mutant(
        name="a worker takes an id again before its transaction is known to be settled",
        hurts="initialising the producer aborts a decided transaction",
        breaks=changed(producers.ProducerPool._may_use, ("committed.get(self._id(number).suffix) == last", "True")),
        hunt=ANY,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="an id counts as free because an older transaction under it is settled",
        hurts="the newer one is decided, perhaps, and aborted by the next use of its id",
        breaks=changed(
            producers.ProducerPool._may_use,
            ("committed.get(self._id(number).suffix) == last", "self._id(number).suffix in committed"),
        ),
        hunt=DEAF,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="a worker takes over the ids of one that has ended without knowing that they are settled",
        hurts="initialising the producer aborts a decided transaction",
        breaks=changed(
            producers.ProducerPool.__init__,
            ("key.generation)", "key.generation); self._seat.last = dict.fromkeys(self._seat.last, NOTHING)"),
        ),
        hunt=IDLE,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="an id stays on its seat while it is used",
        hurts="its worker dies, and the next one takes it for free while its transaction is decided and unsettled",
        breaks=both(
            changed(
                producers.ProducerPool._next, ("self._seat.strike(number)", "self._seat.last.get(number, NOTHING)")
            ),
            changed(producers.ProducerPool.take, ("self._seat.strike(prepared.id.n)", "pass")),
        ),
        hunt=DYING,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="the sweep does not look at whose ids they are",
        hurts="transactions of other jobs are aborted",
        breaks=both(
            changed(transactions.Transactions.open_ids, ("if identifier.job == job", "")),
            changed(identifiers.job_pattern, ("re.escape(job) + r", "re.escape(job) + r'.*' + r")),
        ),
        hunt=NEIGHBOURS,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="a driver that was replaced sweeps its successor's transactions",
        hurts="what the successor has acknowledged is aborted",
        breaks=changed(committer.KafkaCommitter.sweep, ("if generation is not None:", "if False:")),
        hunt=SUCCESSOR,
        caught_by=(Invariant.I1,),
    ),
)

TRANSACTIONS = (
    Mutant(
        name="a pre-commit fences transactions that are decided and not settled",
        hurts="a completed checkpoint loses records",
        breaks=changed(sink.KafkaSink.pre_commit, ("for committable in unsettled}", "for committable in ()}")),
        hunt=ANY,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="a pre-commit leaves the transactions of lost attempts open",
        hurts="readers wait for them until the brokers give up",
        breaks=changed(precommit.abort_losers, ("fence_ids(control, losers, clock)", "pass")),
        hunt=TASKS,
        caught_by=(Invariant.I9,),
    ),
    Mutant(
        name="a vote is believed without asking the brokers",
        hurts="a transaction that is gone is acknowledged, and its records are lost",
        breaks=changed(
            precommit._require_ours, ("if view.code != CODE_NONE:", "return\n    if view.code != CODE_NONE:")
        ),
        hunt=FOREIGN,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="a task votes before its records are flushed",
        hurts="records that the brokers never took count as written",
        breaks=changed(
            delivery.Delivery.flush,
            ("while self._producer.flush(_FLUSH_SLICE_S):\n            self._check()", "pass"),
        ),
        hunt=BROKERS,
        caught_by=(Invariant.I1, Invariant.I4),
    ),
    Mutant(
        name="transactions are ended with the epoch after theirs",
        hurts="no decision can be carried out",
        breaks=changed(precommit.make_committables, ("epoch=views[name].epoch,", "epoch=views[name].epoch + 1,")),
        hunt=ANY,
        caught_by=(Invariant.I1, Invariant.I5, Invariant.I8, Invariant.I13),
    ),
)

PROOFS = (
    Mutant(
        name="no answer to a commit is taken for an answer",
        hurts="the checkpoint counts as settled, and its transaction is still open",
        breaks=changed(
            outcomes.classify,
            ("return EndAnswer.AGAIN\n    if code == CODE_NONE:", "return EndAnswer.DONE\n    if code == CODE_NONE:"),
        ),
        hunt=BROKERS,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="a refused commit is taken for a commit",
        hurts="the refusal may mean that the transaction was aborted",
        breaks=changed(
            outcomes.classify,
            (
                "EndAnswer.AGAIN if code in _AGAIN else EndAnswer.DOUBT",
                "EndAnswer.AGAIN if code in _AGAIN else EndAnswer.DONE",
            ),
        ),
        hunt=FOREIGN,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="a receipt that is missing proves a loss",
        hurts="a committed transaction whose receipt was deleted or expired is called lost",
        breaks=changed(
            outcomes._proof,
            (
                "proof = _shown(transaction, look)",
                "proof = _shown(transaction, look)\n"
                "    if proof is Proof.NOTHING and look.receipt.state is ReceiptState.ABSENT:\n"
                "        return Proof.LOST",
            ),
        ),
        hunt=FATES,
        caught_by=(Invariant.I13,),
    ),
    Mutant(
        name="a receipt that somebody's open transaction hides counts as absent",
        hurts="a committed transaction is called lost",
        breaks=changed(
            outcomes._proof,
            (
                "proof = _shown(transaction, look)",
                "proof = _shown(transaction, look)\n    if proof is Proof.UNSTABLE:\n        return Proof.LOST",
            ),
        ),
        hunt=FATES,
        caught_by=(Invariant.I13,),
    ),
    Mutant(
        name="a commit at the next epoch counts as ours where ending does not raise epochs",
        hurts="another program's commit is taken for ours, which was aborted",
        breaks=changed(
            outcomes._shown_by_coordinator, ("same_producer and transaction.version >= 5 and", "same_producer and")
        ),
        hunt=FATES,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="a commit at the producer's next epoch in the log counts as ours",
        hurts="another program's commit is taken for ours, which was aborted",
        breaks=changed(
            markers._search,
            ("elif pair in pairs and pair not in found:", "elif (pair := next(iter(pairs))) not in found:"),
        ),
        hunt=FATES,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="any receipt proves, whatever its token",
        hurts="another transaction's receipt under the id makes ours count as committed",
        breaks=changed(receipts._receipt, ("and offset.metadata == token", "")),
        hunt=FATES,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="an abort that was not confirmed counts as done",
        hurts="the transaction stays open, and readers wait",
        breaks=changed(
            fencing.fence_ids,
            ("return {name: code for name, code in codes.items() if code != CODE_NONE}", "return {}"),
        ),
        hunt=NEIGHBOURS,
        caught_by=(Invariant.I9,),
    ),
)

PARTS = (
    Mutant(
        name="a transaction of which a partition has lost its part is committed all the same",
        hurts="its records in that partition never become visible, and the checkpoint counts as settled",
        breaks=changed(settling.Settling._torn, ("if not suspects:", "if True:")),
        hunt=TOOLS,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="an answered commit is enough, whatever the partitions held",
        hurts="a commit that somebody else made hides that a part had been aborted before",
        breaks=changed(settling.Settling._ask, (" if parts[handle.slot].whole", "")),
        hunt=FATES,
        caught_by=(Invariant.I1,),
    ),
    Mutant(
        name="the COMMIT marker of one partition stands for all of them",
        hurts="what another partition shows as aborted counts as committed",
        breaks=changed(outcomes._proof, ("Proof.PARTLY if look.log.aborted else Proof.COMMITTED", "Proof.COMMITTED")),
        hunt=FATES,
        caught_by=(Invariant.I1,),
    ),
)

KAFKA = (*IDS, *TRANSACTIONS, *PROOFS, *PARTS, *CLAIMS)
