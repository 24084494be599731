"""Write lost slots of a completed checkpoint again, before anything later is written (docs/protocol.md#lost-slots).

Only the lost slots are read and written, from the exact ranges that made them, in transactions of the current
generation. A sink with one committable for a checkpoint loses all slots at once. The result counts once the coordinator
has accepted it as an amendment; until then it is aborted like any unacknowledged transaction.
"""

from collections.abc import Sequence
from dataclasses import replace

from onceward.client.session import Session
from onceward.common.errors import HaltedError, OncewardError
from onceward.common.killpoints import KillPoint, kill_point
from onceward.connectors.interfaces import Plan, ReplayRefusedError, Rereads
from onceward.driver.mailbox import GenerationFailedError, Mailbox
from onceward.driver.members import Members
from onceward.driver.origins import lost_splits, origins_of, require_records, require_slots
from onceward.driver.outputs import Outputs
from onceward.driver.settler import Settler, Work
from onceward.protocol.answers import Replay, Verdict
from onceward.protocol.committing import PreCommitted
from onceward.protocol.values import Committable, OnLost

__all__ = ["Replayer"]

_LONGEST_REASON = 6_000
"""Characters: the names of the lost records must fit into what the coordinator stores."""


class Replayer:
    """Carries out the coordinator's replay instructions on the driver's main thread."""

    def __init__(
        self, members: Members, outputs: Outputs, session: Session, settler: Settler, mailbox: Mailbox
    ) -> None:
        self._m = members
        self._outputs = outputs
        self._session = session
        self._settler = settler
        self._mailbox = mailbox

    def replay(self, wanted: Replay) -> None:
        """Write the lost slots again and amend the checkpoint, or decline, which halts the job.

        Everything later must be aborted already. Raises the error that ends the generation; the next one is instructed
        to replay what is still lost.
        """
        work, sink = self._settler.work(wanted.checkpoint), self._outputs.sink(wanted.participant)
        if work is None or wanted.amendment != work.amendment:
            return  # already amended: the coordinator sent this instruction before it knew of the amendment
        if sink.participant.on_lost is OnLost.SKIP:
            # The loss was recorded under another policy: prove it again; it is then given up.
            self._settler.prove_again(wanted.checkpoint, wanted.participant)
            return
        lost = tuple(one for one in work.committables[wanted.participant] if one.slot in wanted.slots)
        # Confirmed: no open transaction could become visible after the lost records.
        self._outputs.end_leftovers(keep=self._settler.unsettled())
        kill_point(KillPoint.DRIVER_BEFORE_REPLAY)
        try:
            # Write under any policy: if the sink's policy is not REPLAY now, another policy or a person ordered this.
            written, made = self._write(wanted, lost, work)
        except ReplayRefusedError as error:
            self._outputs.end_leftovers(keep=self._settler.unsettled())
            self._decline(wanted, lost, error)
            return
        kill_point(KillPoint.DRIVER_AFTER_REPLAY)
        self._settler.amend(wanted.checkpoint, wanted.participant, wanted.slots, written, made)
        answer = self._session.amend(wanted.checkpoint, wanted.participant, wanted.amendment, wanted.slots, written)
        if answer.verdict not in (Verdict.ACCEPTED, Verdict.DUPLICATE):
            raise GenerationFailedError(
                f"The coordinator refused what was written again for checkpoint {wanted.checkpoint}: "
                f"{answer.verdict.value}: {answer.detail}. It is not visible; the next generation aborts it and goes "
                "by what the coordinator has on record."
            )
        kill_point(KillPoint.DRIVER_AFTER_AMEND)
        # The checkpoint is long decided. If nothing had to be written, no instruction follows: it is settled already.
        self._settler.complete(wanted.checkpoint, wanted.amendment + 1)

    def _write(
        self, wanted: Replay, lost: Sequence[Committable], work: Work
    ) -> tuple[tuple[Committable, ...], PreCommitted]:
        """Pre-commit the lost slots again. Raises ReplayRefusedError and the errors of a failed Spark job."""
        m, checkpoint = self._m, wanted.checkpoint
        splits = lost_splits(self._outputs.sink(wanted.participant), lost)
        if work.positions is None:
            raise ReplayRefusedError(f"the positions of checkpoint {checkpoint} are not known")
        if not isinstance(m.source, Rereads):
            raise ReplayRefusedError(
                f"the source {m.source.participant.name} does not report whether its input is still complete"
            )
        m.source.check_replay(splits, work.positions)
        m.tasks.start()
        began = m.runtime.monotonic()
        plan = Plan(splits=splits, positions=work.positions, records=len(splits), lag=0, finished=False)
        self._mailbox.running(checkpoint)
        try:
            votes = m.tasks.run(
                generation=self._session.generation, checkpoint=checkpoint, plan=plan, sinks=[wanted.participant]
            )
        except Exception as error:
            self._mailbox.raise_error()
            raise self._known(checkpoint, error) from error
        finally:
            self._mailbox.running(None)
        written_by = votes[wanted.participant]
        inputs = m.tasks.inputs(plan, votes)
        require_slots(self._outputs.sink(wanted.participant), lost, inputs[wanted.participant])
        if m.letters is not None:
            require_records(lost, sum(vote.records for vote in written_by))
        made = self._outputs.pre_commit(
            checkpoint,
            votes,
            origins_of(inputs, m.source.describe),
            keep=self._settler.unsettled(),
        )[wanted.participant]
        written = tuple(replace(one, slot=lost[one.slot].slot) for one in made.committables)
        seconds = m.runtime.monotonic() - began
        m.journal.log(
            "replayed",
            checkpoint=checkpoint,
            slots=len(lost),
            transactions=len(written),
            written=sum(vote.records for vote in written_by),
            amendment=wanted.amendment + 1,
            seconds=round(seconds, 3),
        )
        if m.traces is not None:
            m.traces.replayed(checkpoint, written_by, seconds=seconds, transactions=len(written))
        return written, made

    def _known(self, checkpoint: int, error: Exception) -> OncewardError:
        """Classify the error of a failed Spark job: missing input ends the replay, any other ends this generation."""
        known = error if isinstance(error, OncewardError) else self._m.source.diagnose(error)
        if isinstance(known, HaltedError):
            return ReplayRefusedError(str(known))
        return known or GenerationFailedError(
            f"Writing the lost slots of checkpoint {checkpoint} again failed: {error}. Nothing of it is visible; the "
            "next generation tries again."
        )

    def _decline(self, wanted: Replay, lost: Sequence[Committable], error: ReplayRefusedError) -> None:
        """Decline, which halts the job; the reason names exactly what is lost."""
        records = "; ".join(self._outputs.describe(wanted.participant, committable) for committable in lost)
        reason = f"{error}. Lost: {records}"
        if len(reason) > _LONGEST_REASON:
            all_of_them = f"onceward checkpoints {self._m.job} --show {wanted.checkpoint}"
            reason = f"{reason[:_LONGEST_REASON]} … (all of them: {all_of_them})"
        self._m.journal.log("replay declined", checkpoint=wanted.checkpoint, slots=len(lost), reason=str(error))
        if self._m.traces is not None:
            self._m.traces.replay_declined(wanted.checkpoint, str(error))
        self._session.decline(wanted.checkpoint, wanted.participant, reason)
