"""Carries out decisions: commits completed checkpoints alongside the running job, proves the commits, reports them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias, assert_never

from onceward.client.session import Session
from onceward.common.errors import HaltedError, OncewardError
from onceward.common.killpoints import KillPoint, kill_point
from onceward.common.printable import logger
from onceward.connectors.interfaces import Source
from onceward.driver.journal import Journal
from onceward.driver.outputs import Claims, Held, Made, Outputs
from onceward.driver.runtime import THREADS, Runtime
from onceward.driver.tracing import DriverTraces
from onceward.protocol.answers import Verdict
from onceward.protocol.committing import PreCommitted
from onceward.protocol.values import (
    NO_CHECKPOINT,
    Author,
    CheckpointId,
    Claim,
    Committable,
    Document,
    OnLost,
    Outcome,
    ParticipantName,
    Settlement,
)

__all__ = ["Settler", "Work"]

_log = logger("onceward.pipeline")

_KEEP_CLAIM = 3600.0
"""Seconds after which a claim is written again: brokers forget it a week after its last write, unless set otherwise."""


@dataclass(frozen=True, kw_only=True)
class Work:
    """What must be committed for one checkpoint."""

    committables: Held
    """Those of each participant that has any."""
    positions: Document | None
    """The positions that its source reads next, for lag tools; they also name the topics of its input."""
    amendment: int = 0
    """Version of the committables, of all participants together: 0 for those of the acknowledgement, else the last
    amendment."""
    records: int = 0
    """Records that this generation has read for it."""
    made: Made = field(default_factory=dict)
    """What this generation has pre-committed."""
    proved: Mapping[ParticipantName, Mapping[int, Settlement]] = field(default_factory=dict)
    """Settlements by participant and slot of committables that were proved committed, or lost, before the amendment."""
    lost: Mapping[ParticipantName, frozenset[int]] = field(default_factory=dict)
    """Slots that wait to be written again by the coordinator's record: they must not be committed."""
    since: float
    """When the checkpoint was registered, on the runtime's monotonic clock: the wait for the decision starts here."""

    @property
    def counting(self) -> Held:
        """What has an outcome to report."""
        return {
            name: [one for one in committables if one.slot not in self.lost.get(name, frozenset())]
            for name, committables in self.committables.items()
        }

    @property
    def open(self) -> Held:
        """What must be committed now."""
        left = {
            name: [one for one in committables if one.slot not in self.proved.get(name, {})]
            for name, committables in self.counting.items()
        }
        return {name: committables for name, committables in left.items() if committables}


_Settlements: TypeAlias = Mapping[ParticipantName, tuple[Settlement, ...]]


class Settler:
    """One thread, one checkpoint at a time: checkpoints become visible in order."""

    def __init__(
        self,
        *,
        session: Session,
        source: Source,
        outputs: Outputs,
        journal: Journal,
        on_settled: Callable[[CheckpointId, int], None],
        on_lost: Callable[[], None],
        on_error: Callable[[OncewardError], None],
        on_wait: Callable[[], None] = lambda: None,
        runtime: Runtime = THREADS,
        traces: DriverTraces | None = None,
    ) -> None:
        """The settler's thread makes all calls back.

        ``on_settled``: a checkpoint is settled, for which this generation has read this number of records; ``on_lost``:
        the coordinator has recorded a loss that will be replayed; ``on_wait``: commits are unanswered and are retried.
        """
        self._session = session
        self._source = source
        self._outputs = outputs
        self._journal = journal
        self._on_settled = on_settled
        self._on_lost = on_lost
        self._on_error = on_error
        self._on_wait = on_wait
        self._runtime = runtime
        self._traces = traces
        self._worker = runtime.worker("onceward-settle")
        self._lock = runtime.lock()
        self._work: dict[CheckpointId, Work] = {}
        self._submitted: dict[tuple[CheckpointId, int], float] = {}
        """When the decision on each was first known, on the runtime's monotonic clock."""
        self._settlements: dict[tuple[CheckpointId, int], _Settlements] = {}
        self._forgotten: set[CheckpointId] = set()
        self._claimed: Claim | None = None
        self._claimed_at = 0.0
        """When the claim was written last, or is to be written again, on the runtime's monotonic clock."""
        self._closing = False
        self.settled = NO_CHECKPOINT
        """The newest checkpoint that is settled, or had nothing to settle."""
        self.lost = NO_CHECKPOINT
        """The newest checkpoint with lost slots that wait to be written again."""

    def author(self, participant: ParticipantName) -> Author:
        """The author of every committable of ``participant`` that this generation may end: its own and, after a
        recovery, those of the checkpoint that it was granted."""
        completed, generation = self._session.grant.completed, self._session.generation
        first = completed.generation if completed is not None else generation
        return Author(job=self._session.job, participant=participant, generations=range(first, generation + 1))

    def expect(
        self,
        checkpoint: CheckpointId,
        committables: Held,
        positions: Document | None,
        *,
        amendment: int = 0,
        records: int = 0,
        made: Made | None = None,
        lost: Mapping[ParticipantName, frozenset[int]] | None = None,
    ) -> None:
        """Register what to commit if ``checkpoint`` is completed, and the records that were read for it. ``lost``:
        slots of it that wait to be written again."""
        with self._lock:
            now = self._runtime.monotonic()
            self._work[checkpoint] = Work(
                committables=committables,
                positions=positions,
                amendment=amendment,
                records=records,
                made=made or {},
                lost=lost or {},
                since=now,
            )
            # Remove only work that can never be committed or aborted again: an idle job burns one id per second, while
            # the brokers may take minutes to answer for the last checkpoint that wrote something.
            # The newest one that is settled stays, too: an older copy of the store that lacks only that asks for it.
            done = [c for c, w in self._work.items() if c < checkpoint and (c < self.settled or not w.committables)]
            for old in done:
                del self._work[old]
            self._submitted = {turn: at for turn, at in self._submitted.items() if turn[0] in self._work}

    def take_claim(self, seen: Claims) -> None:
        """Claim the job, in place of ``seen``. See :meth:`Outputs.take_claim`."""
        completed = self._session.grant.completed
        claim = self._claim(NO_CHECKPOINT, 0) if completed is None else self._claim(completed.id, completed.amendment)
        self._outputs.take_claim(claim, seen)
        self._claim_is(claim)

    def keep_claim(self) -> None:
        """Write the claim of an idle job again now and then, so that it does not expire. Waits for nothing."""
        with self._lock:
            due = self._claimed is not None and self._runtime.monotonic() - self._claimed_at >= _KEEP_CLAIM
            if due and not self._closing:
                self._claimed_at = self._runtime.monotonic()
                self._worker.submit(lambda: self._safely(self.settled, self._write_claim_again))

    def _write_claim_again(self) -> None:
        claim = self._claimed
        assert claim is not None, "taken before"
        self._outputs.renew_claim(claim, give_up=self._leaving)

    def prepare(self, checkpoint: CheckpointId) -> None:
        """Prepare the claim of ``checkpoint`` while its Spark job runs: it counts only if the checkpoint completes."""
        with self._lock:
            if not self._closing:
                claim = self._claim(checkpoint, 0)
                self._worker.submit(lambda: self._safely(checkpoint, lambda: self._outputs.prepare_claim(claim)))

    def work(self, checkpoint: CheckpointId) -> Work | None:
        """Return the work registered for ``checkpoint``."""
        with self._lock:
            return self._work.get(checkpoint)

    def amend(
        self,
        checkpoint: CheckpointId,
        participant: ParticipantName,
        slots: frozenset[int],
        written: Sequence[Committable],
        made: PreCommitted | None = None,
    ) -> None:
        """Replace lost ``slots`` by ``written``: from now on, only the coordinator's decision may end them."""
        with self._lock:
            former = self._work[checkpoint]
            reported = self._settlements.get((checkpoint, former.amendment), {})
            proved = {
                name: {
                    **former.proved.get(name, {}),
                    **{one.slot: one for one in reported.get(name, ()) if one.outcome is not Outcome.IN_DOUBT},
                }
                for name in former.committables
            }
            proved[participant] = {slot: one for slot, one in proved[participant].items() if slot not in slots}
            left = former.lost.get(participant, frozenset()) - slots
            kept = [one for one in former.committables[participant] if one.slot not in slots]
            replaced = tuple(sorted((*kept, *written), key=lambda committable: committable.slot))
            held = {name: each for name, each in {**former.committables, participant: replaced}.items() if each}
            self._work[checkpoint] = replace(
                former,
                committables=held,
                amendment=former.amendment + 1,
                made={} if made is None else {participant: made},
                proved=proved,
                lost={**former.lost, participant: left},
            )

    def prove_again(self, checkpoint: CheckpointId, participant: ParticipantName) -> None:
        """Ask again for the outcomes of what is recorded as lost: the sink's policy is another one now."""
        with self._lock:
            work = self._work[checkpoint]
            self._work[checkpoint] = replace(work, lost={**work.lost, participant: frozenset()})
        self.complete(checkpoint, work.amendment)

    def forget(self, checkpoint: CheckpointId) -> None:
        """Drop ``checkpoint``, which was aborted."""
        with self._lock:
            self._work.pop(checkpoint, None)
            self._forgotten = {old for old in self._forgotten if old > self.settled} | {checkpoint}

    def unsettled(self) -> Held:
        """Return the committables that only a decision may end: those of completed checkpoints and of acknowledged,
        undecided ones."""
        held: dict[ParticipantName, tuple[Committable, ...]] = {}
        with self._lock:
            for checkpoint, work in self._work.items():
                if checkpoint > self.settled:
                    for name, committables in work.committables.items():
                        held[name] = (*held.get(name, ()), *committables)
        return held

    def complete(self, checkpoint: CheckpointId, amendment: int = 0) -> None:
        """Settle ``checkpoint``; a repeated instruction settles nothing twice, it reports the outcome again."""
        with self._lock:
            if checkpoint in self._forgotten and not self._closing:
                self._worker.submit(lambda: self._on_error(_completed_after_all(checkpoint)))
                return
            work, turn = self._work.get(checkpoint), (checkpoint, amendment)
            if work is None or work.amendment != amendment or self._closing:
                return  # a closing driver leaves what it has not begun to the next generation
            if turn in self._submitted and turn not in self._settlements:
                return
            self._submitted.setdefault(turn, self._runtime.monotonic())
            self._worker.submit(lambda: self._safely(checkpoint, lambda: self.settle(checkpoint, amendment)))

    def passed(self, checkpoint: CheckpointId) -> None:
        """Settle a completed ``checkpoint`` that has nothing to commit: no instruction comes for it."""
        with self._lock:
            work = self._work.get(checkpoint)
            if work is None or work.committables or self._closing:
                return
            if (checkpoint, work.amendment) not in self._submitted:
                self._submitted[checkpoint, work.amendment] = self._runtime.monotonic()
                self._worker.submit(lambda: self._safely(checkpoint, lambda: self._done(checkpoint, work, {})))

    def close(self, *, wait: bool) -> None:
        with self._lock:
            self._closing = True
        self._worker.close(wait=wait)

    def _safely(self, checkpoint: CheckpointId, settle: Callable[[], None]) -> None:
        try:
            settle()
        except OncewardError as error:
            self._on_error(error)
        except Exception as error:  # noqa: BLE001 - handed to the main thread, which ends the generation with it
            _log.exception("settling checkpoint %s failed", checkpoint)
            failure = OncewardError(
                f"Settling checkpoint {checkpoint} failed with {error!r}. It stays completed; its commits are repeated "
                "by the next generation."
            )
            self._on_error(failure)

    def _named(
        self, name: ParticipantName, settlements: Sequence[Settlement], committables: Sequence[Committable]
    ) -> tuple[Settlement, ...]:
        """Add the records to each settlement that is not proved committed, for the store and its readers."""
        by_slot = {committable.slot: committable for committable in committables}
        return tuple(
            settlement
            if settlement.outcome is Outcome.COMMITTED
            else replace(
                settlement, evidence=f"{self._outputs.describe(name, by_slot[settlement.slot])}. {settlement.evidence}"
            )
            for settlement in settlements
        )

    def settle(self, checkpoint: CheckpointId, amendment: int) -> None:
        """Renew the claim, commit, prove, report; then show the positions to lag tools."""
        work = self.work(checkpoint)
        if work is None:  # a repeated instruction that waited until later checkpoints were written: it is settled
            return
        if work.amendment != amendment:
            # A repeated instruction that waited until lost slots were written again. It concerns the slots that were
            # replaced: the coordinator may not know of the amendment yet, and would have the slots written again.
            return
        turn = (checkpoint, amendment)
        if turn not in self._settlements:
            if checkpoint <= self.settled:  # such an instruction waited until the next checkpoint was committed
                return
            kill_point(KillPoint.DRIVER_AFTER_DECISION)
            # Renew before the commits: from now on, a copy of the store that does not know this checkpoint, or what
            # replaced its lost slots, is rejected.
            if not self._renew_claim(checkpoint, work):
                return  # leaving
            kill_point(KillPoint.DRIVER_AFTER_CLAIM_RENEWAL)
            settlements = self._commit(work)
            if any(len(settlements[name]) < len(held) for name, held in work.counting.items()):
                return  # leaving: the other outcomes are unknown, the next generation asks for them
            kill_point(KillPoint.DRIVER_AFTER_END_TXN)
            with self._lock:
                self._settlements = {turn: settlements}
        settlements = self._settlements[turn]
        for name in sorted(settlements, key=lambda name: bool(_unproved(settlements[name]))):  # a doubt halts the job
            if settlements[name]:
                self._report(checkpoint, name, settlements[name], amendment)
        if (current := self.work(checkpoint)) is None or current.amendment != amendment:
            return  # what the coordinator has taken may be too late: the outcomes are reported for the amendment again
        if not self._goes_on(checkpoint, settlements) or any(current.lost.values()):
            return
        kill_point(KillPoint.DRIVER_AFTER_SETTLE)
        self._done(checkpoint, work, settlements)

    def _report(
        self, checkpoint: CheckpointId, name: ParticipantName, settlements: Sequence[Settlement], amendment: int
    ) -> None:
        answer = self._session.settle(checkpoint, name, settlements, amendment=amendment)
        if answer.verdict not in (Verdict.ACCEPTED, Verdict.DUPLICATE, Verdict.TOO_LATE):
            raise OncewardError(
                f"The coordinator refused the outcomes of checkpoint {checkpoint}: {answer.verdict.value}: "
                f"{answer.detail}. What Kafka has committed stays committed; the next generation reports it again."
            )

    def _done(self, checkpoint: CheckpointId, work: Work, settlements: _Settlements) -> None:
        """Mark ``checkpoint`` as settled, report it, and show its positions to lag tools."""
        if checkpoint <= self.settled:
            return
        with self._lock:
            self.settled = checkpoint
            decided = self._submitted.get((checkpoint, work.amendment), work.since)
        if work.positions is not None:
            self._source.on_settled(work.positions)
        committed = {
            name: {one.slot for one in each if one.outcome is Outcome.COMMITTED} for name, each in settlements.items()
        }
        proved = {
            name: [one for one in held if one.slot in committed.get(name, ())]
            for name, held in work.committables.items()
        }
        transactions = sum(map(len, committed.values()))
        self._outputs.on_settled(checkpoint, proved)
        self._on_settled(checkpoint, work.records)
        settled = self._runtime.monotonic()
        self._journal.log(
            "settled",
            checkpoint=checkpoint,
            transactions=transactions,
            steps={"decide": round(decided - work.since, 6), "settle": round(settled - decided, 6)},
        )
        if self._traces is not None and transactions:
            self._traces.settled(checkpoint, seconds=settled - decided, transactions=transactions)
        if not work.committables:  # its claim was not renewed before: there were no commits
            self._renew_claim(checkpoint, work)
        if work.positions is not None:
            self._source.mirror(work.positions)

    def _claim(self, checkpoint: CheckpointId, amendment: int) -> Claim:
        return Claim(
            store_id=self._session.grant.store_id,
            generation=self._session.generation,
            completed=checkpoint,
            holder=self._session.driver,
            amendment=amendment,
        )

    def _renew_claim(self, checkpoint: CheckpointId, work: Work) -> bool:
        claim = self._claim(checkpoint, work.amendment)
        renewed = self._outputs.renew_claim(claim, give_up=self._leaving, made=work.made)
        if renewed:
            self._claim_is(claim)
        return renewed

    def _claim_is(self, claim: Claim) -> None:
        with self._lock:
            self._claimed, self._claimed_at = claim, self._runtime.monotonic()

    def _leaving(self) -> bool:
        self._on_wait()
        return self._closing

    def _commit(self, work: Work) -> _Settlements:
        """Return outcomes by participant and slot; fewer than committables when the driver leaves."""
        found = self._outputs.commit(self.author, work.open, give_up=self._leaving, made=work.made)
        settlements = {}
        for name, held in work.counting.items():
            known = work.proved.get(name, {})
            proved = [known[one.slot] for one in held if one.slot in known]
            named = self._named(name, found.get(name, ()), held)
            settlements[name] = tuple(sorted((*proved, *named), key=lambda settlement: settlement.slot))
        return settlements

    def _goes_on(self, checkpoint: CheckpointId, settlements: _Settlements) -> bool:
        """Return True when the commits need no more work. Raises HaltedError when a person must decide."""
        unproved = {name: bad for name, each in settlements.items() if (bad := _unproved(each))}
        policies = {one.name: one.on_lost for one in self._outputs.participants}
        doubtful = [
            name
            for name, bad in unproved.items()
            if policies[name] is OnLost.HALT or any(one.outcome is not Outcome.LOST for one in bad)
        ]
        if doubtful:
            raise HaltedError(_halt_message(checkpoint, [one for name in doubtful for one in settlements[name]]))
        again = False
        for name, bad in unproved.items():
            policy, evidence = policies[name], "; ".join(settlement.evidence for settlement in bad)
            self._journal.log("lost", checkpoint=checkpoint, transactions=len(bad), policy=policy.value)
            match policy:
                case OnLost.REPLAY:
                    _log.warning("checkpoint %s: %s. They are written again.", checkpoint, evidence)
                    again = True
                case OnLost.SKIP:
                    _log.error(
                        "checkpoint %s: %s. They are given up; the coordinator records the loss.", checkpoint, evidence
                    )
                case OnLost.HALT:
                    raise AssertionError("it halts above")
                case _:
                    assert_never(policy)
        if again:
            with self._lock:
                self.lost = checkpoint
            self._on_lost()
        return not again


def _unproved(settlements: Sequence[Settlement]) -> list[Settlement]:
    return [settlement for settlement in settlements if settlement.outcome is not Outcome.COMMITTED]


def _halt_message(checkpoint: CheckpointId, settlements: Sequence[Settlement]) -> str:
    unproved = _unproved(settlements)
    lines = [f"{settlement.outcome.value}: {settlement.evidence}" for settlement in unproved]
    return (
        f"Checkpoint {checkpoint} is completed, but {len(unproved)} of its {len(settlements)} transactions are not "
        "proved committed. The job halts: nothing is repeated and nothing is skipped until a person decides.\n  "
        + "\n  ".join(lines)
    )


def _completed_after_all(checkpoint: CheckpointId) -> HaltedError:
    return HaltedError(
        f"The coordinator orders to commit checkpoint {checkpoint}, which was aborted: its store was replaced by an "
        "older copy, which lacks the abort. This driver reads and writes nothing more, and no record is lost: the next "
        "driver finds the aborted transactions, and writes their records again or asks for a decision. If the newest "
        "store still exists, stop the coordinator and put it back first."
    )
