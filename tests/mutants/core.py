"""Bugs of the state machine: decisions, generations, settling."""

from onceward.coordinator.protocol import checkpoints, core, evolve, generations, settling
from onceward.coordinator.protocol import state as states
from tests.explorer.invariants import Invariant
from tests.explorer.world import Bounds
from tests.mutants.breaking import changed
from tests.mutants.hunts import Exploration, Lives
from tests.mutants.mutant import Mutant
from tests.mutants.oracle import People

__all__ = ["CORE", "LIVES", "SMALL", "TINY"]

TINY = Exploration(
    name="tiny world", bounds=Bounds(checkpoints=3, crashes=1, messages=1, store=0, declines=0, timeouts=0)
)
SMALL = Exploration(
    name="small world", bounds=Bounds(checkpoints=3, crashes=1, messages=0, store=0, declines=1, timeouts=1)
)
LIVES = Lives(most=400)

DECISIONS = (
    Mutant(
        name="a commit is ordered before the decision is durable",
        hurts="a crash in between aborts the checkpoint, and its records are written once more",
        breaks=changed(
            core.wanted,
            (
                "if durable.status is JobStatus.RESTARTING:",
                "if pending is not None and state.all_answered:\n"
                "        instructions.append(Complete(checkpoint=pending.id))\n"
                "    if durable.status is JobStatus.RESTARTING:",
            ),
        ),
        hunt=TINY,
        caught_by=(Invariant.ONE_DECISION,),
    ),
    Mutant(
        name="checkpoint n+1 is completed before n is settled",
        hurts="output becomes visible out of order, and a lost n cannot be written again in its place",
        breaks=changed(checkpoints.decide, ("if not state.settled:", "if False:")),
        hunt=TINY,
        caught_by=(Invariant.IN_ORDER,),
    ),
    Mutant(
        name="a checkpoint is completed without one participant",
        hurts="positions move on past records that no sink has",
        breaks=changed(states.JobState.all_answered, ("all(p.name", "any(p.name")),
        hunt=TINY,
        caught_by=(Invariant.EVERYBODY,),
    ),
    Mutant(
        name="the decision forgets one committable",
        hurts="nobody commits that slot, and its records are lost",
        breaks=changed(
            checkpoints.decide,
            (
                "snapshots=dict(known.answers)",
                "snapshots={n: replace(s, committables=s.committables[:-1]) for n, s in known.answers.items()}",
            ),
        ),
        hunt=LIVES,
        caught_by=(Invariant.EVERYBODY,),
    ),
    Mutant(
        name="an acknowledgement counts for whatever checkpoint is undecided",
        hurts="the answer to an aborted checkpoint completes the next one with transactions that are aborted",
        breaks=changed(checkpoints.acknowledge, ("or pending.id != event.checkpoint", "")),
        hunt=SMALL,
        caught_by=(Invariant.EVERYBODY, Invariant.NEVER_CHANGES),
    ),
    Mutant(
        name="an acknowledgement of another base counts",
        hurts="ranges that overlap or leave a hole are completed one after the other",
        breaks=changed(checkpoints.acknowledge, ("if event.base != pending.base:", "if False:")),
        hunt=LIVES,
        caught_by=(Invariant.TILES,),
    ),
    Mutant(
        name="a second acknowledgement with other content takes the place of the first",
        hurts="transactions that were voted for first stay open, or are aborted while their records count as written",
        breaks=changed(checkpoints.acknowledge, ("if recorded is not None:", "if recorded == event.snapshot:")),
        hunt=LIVES,
        caught_by=(Invariant.NEVER_CHANGES,),
    ),
    Mutant(
        name="a checkpoint with something new in one participant is forgotten as unchanged",
        hurts="transactions that were acknowledged are never decided",
        breaks=changed(checkpoints.decide, ("unchanged = all(", "unchanged = any(")),
        hunt=LIVES,
        caught_by=(Invariant.TILES,),
    ),
    Mutant(
        name="a checkpoint is triggered while another one is undecided",
        hurts="two checkpoints read the same range",
        breaks=changed(checkpoints.due, ("or durable.pending is not None", "")),
        hunt=LIVES,
        caught_by=(Invariant.ONE_DECISION,),
    ),
    Mutant(
        name="the id of an aborted checkpoint is used again",
        hurts="a late answer about the former one counts for the new one",
        breaks=changed(checkpoints.trigger, ("CheckpointId(durable.last_id + 1)", "CheckpointId(durable.base + 1)")),
        hunt=SMALL,
        caught_by=(Invariant.ONE_DECISION,),
    ),
    Mutant(
        name="a completed checkpoint is told to be aborted",
        hurts="the driver aborts transactions of which the records count as written",
        breaks=changed(checkpoints._decided, ("decision=Decision.COMPLETED", "decision=Decision.ABORTED")),
        hunt=TINY,
        caught_by=(Invariant.NEVER_CHANGES,),
    ),
    Mutant(
        name="the completed checkpoint is aborted when its driver is given up",
        hurts="a decision changes: what is committed already is written again",
        breaks=changed(
            generations.end_generation,
            (
                "if durable.pending is not None:",
                "if durable.completed is not None and not durable.completed.settled:\n"
                "        facts.append(CheckpointAborted(checkpoint=durable.completed.id, generation=durable.generation,"
                " reason=reason, detail=detail, counted=False, ran=0.0))\n"
                "    if durable.pending is not None:",
            ),
        ),
        hunt=SMALL,
        caught_by=(Invariant.NEVER_CHANGES,),
    ),
)

RESTARTS = (
    Mutant(
        name="a restart of the coordinator forgets the undecided checkpoint",
        hurts="its transactions stay open for ever, or its answers count for another one",
        breaks=changed(
            states.restart,
            ("durable=durable,", "durable=replace(durable, pending=None),"),
            ("if durable.pending is not None else None", "if False else None"),
        ),
        hunt=TINY,
        caught_by=(Invariant.ONE_DECISION,),
    ),
    Mutant(
        name="a restart of the coordinator forgets an abort",
        hurts="a checkpoint whose transactions are aborted is completed after all",
        breaks=changed(
            evolve.evolve,
            ("replace(durable, pending=None, aborted=aborted,", "replace(durable, aborted=aborted,"),
        ),
        hunt=SMALL,
        caught_by=(Invariant.NEVER_CHANGES, Invariant.ONE_DECISION),
    ),
    Mutant(
        name="a restart of the coordinator takes ids after the last completed one again",
        hurts="a late answer about an aborted checkpoint counts for another one",
        breaks=changed(states.restart, ("durable=durable,", "durable=replace(durable, last_id=durable.base),")),
        hunt=SMALL,
        caught_by=(Invariant.ONE_DECISION,),
    ),
    Mutant(
        name="a restart of the coordinator takes the completed checkpoint for settled",
        hurts="nobody commits it, and its records are lost",
        breaks=changed(
            states.restart,
            (
                "durable=durable,",
                "durable=replace(durable, completed=durable.completed and replace(durable.completed, settled=True)),",
            ),
        ),
        hunt=TINY,
        caught_by=(Invariant.RESTORED, Invariant.SETTLED, Invariant.IN_ORDER),
    ),
)

GENERATIONS = (
    Mutant(
        name="an acknowledgement of an older generation counts",
        hurts="a checkpoint is completed with transactions that the new generation has aborted",
        breaks=changed(
            checkpoints.acknowledge,
            ("if not may_drive(state, event.generation):", "if state.durable.driver is None:"),
        ),
        hunt=TINY,
        caught_by=(Invariant.STALE,),
    ),
    Mutant(
        name="outcomes told by an older generation count",
        hurts="two drivers report at once, and one of them knows only a part",
        breaks=changed(settling._unsettled, ("if not may_report(state, generation):", "if False:")),
        hunt=TINY,
        caught_by=(Invariant.STALE,),
    ),
    Mutant(
        name="a driver that was replaced may decline its successor's checkpoint",
        hurts="two generations decide about one checkpoint",
        breaks=changed(checkpoints.decline, ("if not may_drive(state, event.generation):", "if False:")),
        hunt=TINY,
        caught_by=(Invariant.STALE,),
    ),
    Mutant(
        name="a driver that was replaced ends its successor's generation",
        hurts="the job stops although a living driver owns it",
        breaks=changed(
            generations.close_job, ("if not may_drive(state, event.generation):", "if durable.driver is None:")
        ),
        hunt=TINY,
        caught_by=(Invariant.STALE,),
    ),
    Mutant(
        name="opening a job grants the same generation number again",
        hurts="neither the coordinator nor the brokers can tell two drivers apart",
        breaks=changed(
            generations.open_job,
            ("claim.generation if claim else 0) + 1)", "1, claim.generation if claim else 0))"),
        ),
        hunt=TINY,
        caught_by=(Invariant.STALE,),
    ),
    Mutant(
        name="opening a job leaves the undecided checkpoint undecided",
        hurts="recovery does not know whether to commit or to abort its transactions",
        breaks=changed(generations.open_job, ("if durable.pending is not None:", "if False:")),
        hunt=LIVES,
        caught_by=(Invariant.ONE_DECISION,),
    ),
    Mutant(
        name="a living driver is replaced by whoever asks",
        hurts="two drivers end each other's generations in turn, and nothing is ever completed",
        breaks=changed(generations._wait, ("return max(0.0, min(waits))", "return 0.0")),
        hunt=TINY,
        caught_by=(Invariant.STALE,),
    ),
    Mutant(
        name="a takeover replaces whatever driver there is when it arrives",
        hurts="one that arrives late fences a living driver, and nobody hears of the generation that it was granted",
        breaks=changed(generations.open_job, ("event.instead_of == durable.generation", "event.instead_of")),
        hunt=TINY,
        caught_by=(Invariant.STALE,),
    ),
    Mutant(
        name="the claim is not checked",
        hurts="an old copy of the store, or another one, writes everything once more",
        breaks=changed(generations._refusal, ("if event.claim is not None and not event.adopt:", "if False:")),
        hunt=LIVES,
        caught_by=(People.CLAIMED,),
    ),
    Mutant(
        name="the claim is compared with the last id that was burnt",
        hurts="a copy of the store from before a decision writes what was decided once more",
        breaks=changed(
            generations.claim_refusal,
            ("newest = durable.last_id if durable.unreadable else durable.base", "newest = durable.last_id"),
        ),
        hunt=LIVES,
        caught_by=(People.CLAIMED,),
    ),
    Mutant(
        name="a job with lost records is opened again without a person's decision",
        hurts="it goes on behind a hole in the output, and nobody looks any more",
        breaks=changed(generations.open_job, ("if durable.lost and durable.restore is None:", "if False:")),
        hunt=LIVES,
        caught_by=(Invariant.TILES,),
    ),
)

SETTLING = (
    Mutant(
        name="a checkpoint is called settled with one slot missing",
        hurts="the next one is completed while that slot is still open, perhaps for ever",
        breaks=changed(
            settling.settled_if_proved,
            ("not {c.slot for c in snapshot.committables} <=", "not {c.slot for c in snapshot.committables[:-1]} <="),
        ),
        hunt=LIVES,
        caught_by=(Invariant.SETTLED,),
    ),
    Mutant(
        name="a slot that is reported twice counts as two slots",
        hurts="one slot is never committed although the checkpoint counts as settled",
        breaks=changed(
            settling.settle,
            ("if not bad and good <= known:", "if False:"),
            ("= (known | good)", "= (known | good | frozenset(sorted(slots)[: len(known) + len(good)]))"),
        ),
        hunt=LIVES,
        caught_by=(Invariant.SETTLED,),
    ),
    Mutant(
        name="a slot in doubt counts as committed",
        hurts="what is unknown is taken for done: its records may be missing",
        breaks=changed(
            settling.settle,
            ("if s.outcome is not Outcome.COMMITTED and", "if s.outcome is Outcome.LOST and"),
            ("if s.outcome is Outcome.COMMITTED)", "if s.outcome is not Outcome.LOST)"),
        ),
        hunt=LIVES,
        caught_by=(Invariant.SETTLED,),
    ),
    Mutant(
        name="outcomes of committables that were replaced since count",
        hurts="records that were written again count as committed and are not",
        breaks=changed(settling.settle, ("if event.amendment != completed.amendment:", "if False:")),
        hunt=LIVES,
        caught_by=(Invariant.SETTLED,),
    ),
    Mutant(
        name="a lost slot counts as committed when it is reported once more",
        hurts="it is never written again",
        breaks=changed(settling.settle, ("s.outcome is Outcome.COMMITTED) - lost", "s.outcome is Outcome.COMMITTED)")),
        hunt=LIVES,
        caught_by=(Invariant.SETTLED, Invariant.TILES),
    ),
    Mutant(
        name="a replay begins before the later checkpoint is aborted",
        hurts="records become visible before the lost ones, which belong in front of them",
        breaks=changed(settling._replay, ("if state.durable.pending is not None:", "if False:")),
        hunt=LIVES,
        caught_by=(Invariant.IN_ORDER,),
    ),
    Mutant(
        name="a checkpoint is triggered while lost records are written again",
        hurts="it may be visible before them",
        breaks=changed(checkpoints.due, ("or durable.replaying", "")),
        hunt=LIVES,
        caught_by=(Invariant.IN_ORDER,),
    ),
    Mutant(
        name="slots that are not lost may be written again",
        hurts="records that are committed are written twice",
        breaks=changed(settling.amend, ("or not event.slots <= lost", "")),
        hunt=LIVES,
        caught_by=(Invariant.TILES,),
    ),
    Mutant(
        name="a commit is ordered while lost slots wait to be written again",
        hurts="the driver reports on committables of which some are known to be lost",
        breaks=changed(core.wanted, ("if durable.replaying:", "if False:")),
        hunt=LIVES,
        caught_by=(Invariant.ONE_DECISION,),
    ),
)

CORE = (*DECISIONS, *RESTARTS, *GENERATIONS, *SETTLING)
