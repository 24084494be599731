"""Recover a job: what a generation does between its grant and its first checkpoint (docs/protocol.md#recovery)."""

from onceward.client.session import Session
from onceward.common.errors import ConfigurationError
from onceward.common.killpoints import KillPoint, kill_point
from onceward.connectors.letters import DEAD_LETTERS
from onceward.driver.mailbox import Mailbox
from onceward.driver.members import Members
from onceward.driver.outputs import Claims, Held, Outputs
from onceward.driver.settler import Settler
from onceward.protocol.values import (
    CheckpointId,
    CompletedCheckpoint,
    Document,
)

__all__ = ["Recovery"]


class Recovery:
    """Recovers one generation: claims the job, ends its open transactions, restores its positions; in this order."""

    def __init__(
        self,
        members: Members,
        outputs: Outputs,
        session: Session,
        settler: Settler,
        mailbox: Mailbox,
        *,
        seen: Claims,
    ) -> None:
        """``seen``: the job's claims before this generation was granted."""
        self._m = members
        self._outputs = outputs
        self._session = session
        self._settler = settler
        self._mailbox = mailbox
        self._seen = seen
        self._to_commit: Held = {}
        self.positions: dict[CheckpointId, Document] = {}
        """Positions of the completed checkpoint, by its id; empty when there is none."""

    def take_claim(self) -> None:
        """Register what must be committed, and confirm what is settled, then claim the job. Nothing of the job is
        changed before."""
        completed = self._session.grant.completed
        held = {} if completed is None else self._held(completed)
        if completed is not None and not completed.settled:
            self._to_commit = held
            # Register before anything can fail: a failing generation sweeps all that its settler does not hold.
            self._settler.expect(completed.id, self._to_commit, None)
            self._outputs.check(self._settler.author, self._to_commit)
        else:
            self._outputs.confirm(held)
        self._outputs.begin_generation(self._session.generation)
        if completed is not None:
            self._mailbox.advance(completed.id)
            self.positions[completed.id] = self._positions_of(completed)
            if self._m.letters is not None:
                counted = completed.snapshots.get(DEAD_LETTERS)
                self._m.letters.restore(completed.id, None if counted is None else counted.state)
        self._settler.take_claim(self._seen)

    def end_transactions(self) -> None:
        """Abort undecided transactions, then commit the completed checkpoint: readers wait for both."""
        m, completed = self._m, self._session.grant.completed
        kill_point(KillPoint.DRIVER_AFTER_CLAIM)
        aborted = self._outputs.end_leftovers(keep=self._to_commit)
        kill_point(KillPoint.DRIVER_AFTER_RECOVERY_ABORT)
        if completed is not None and self._to_commit:
            self._commit(completed)
        kill_point(KillPoint.DRIVER_AFTER_RECOVERY_COMMIT)
        m.journal.log(
            "recovered",
            checkpoint=completed.id if completed else 0,
            resumed=sum(map(len, self._to_commit.values())),
            aborted=len(aborted),
        )

    def restore(self) -> None:
        """Restore the source's positions."""
        if self._session.grant.new_run:
            self._m.source.begin_new_run()
        for positions in self.positions.values():
            self._m.source.restore(positions)
            if not self._settler.unsettled():
                self._m.source.on_settled(positions)

    def _held(self, completed: CompletedCheckpoint) -> Held:
        """What the sinks of this job have pre-committed for it."""
        return {
            name: committables
            for name in self._outputs.names
            if name in completed.snapshots and (committables := completed.snapshots[name].committables)
        }

    def _commit(self, completed: CompletedCheckpoint) -> None:
        """Commit before doing anything else. If slots are lost, the coordinator's first instruction concerns them."""
        positions, amendment = self.positions[completed.id], completed.amendment
        lost = self._session.grant.lost
        self._settler.expect(completed.id, self._to_commit, positions, amendment=amendment, lost=lost)
        if not lost:
            self._settler.complete(completed.id, amendment)
            self._mailbox.wait(lambda: completed.id in (self._settler.settled, self._settler.lost), None)

    def _positions_of(self, completed: CompletedCheckpoint) -> Document:
        name = self._m.source.participant.name
        snapshot = completed.snapshots.get(name)
        if snapshot is None or snapshot.positions is None:
            known = [other for other, found in completed.snapshots.items() if found.positions is not None]
            raise ConfigurationError(
                f"Checkpoint {completed.id} of job {self._m.job} has positions of {', '.join(known)}, none of {name}. "
                f"Starting over would write records twice, so nothing was read. Call the source {known[0]} again."
            )
        return snapshot.positions
